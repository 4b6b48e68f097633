"""The demo's own wheels are real ones, and the same at every run."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from firstbad.demo import wheels


def test_two_runs_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = wheels(tmp_path / "first"), wheels(tmp_path / "second")
    assert [path.name for path in first] == [
        "nightly_photos-1.0-py3-none-any.whl",
        "nightly_photos-1.1-py3-none-any.whl",
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_record_lists_every_file_with_its_digest(tmp_path: Path) -> None:
    for path in wheels(tmp_path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            (record,) = (name for name in names if name.endswith("/RECORD"))
            rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
            assert sorted(rows) == sorted(names)
            assert rows.pop(record) == ["", ""]
            for name, (digest, size) in rows.items():
                content = archive.read(name)
                raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                assert (digest, size) == (f"sha256={raw}", str(len(content)))


def test_the_version_that_is_asked_for_is_installed_and_has_photographs_of_its_size(tmp_path: Path) -> None:
    wheels(tmp_path / "wheels")
    for version, side in (("1.0", 448), ("1.1", 576)):
        target = tmp_path / version
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-index", "--no-deps"),
                *("--no-cache", "--find-links", tmp_path / "wheels", "--target", target),
                f"nightly-photos=={version}",
            ],
            check=True,
        )
        assert f"SIDE = {side}" in (target / "nightly_photos" / "__init__.py").read_text()
