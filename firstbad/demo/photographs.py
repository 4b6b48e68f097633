"""The wheels of `nightly-photos`, the demo's own package of photographs.

Built from the module under `nightly/wheel/` with the standard library alone, byte
for byte the same at every run. 1.1 hands over larger photographs than 1.0, and
that is all the difference.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

#: Pixels of a photograph's width and height, by version of the package.
SIDES = {"1.0": 448, "1.1": 576}

_SOURCE = Path(__file__).parent / "nightly" / "wheel" / "nightly_photos" / "__init__.py"
_SIDE_LINE = "SIDE = 448"
_METADATA = """\
Metadata-Version: 2.1
Name: nightly-photos
Version: {version}
Summary: Photographs with captions for the nightly run of firstbad's demo
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: pillow
Requires-Dist: scikit-image
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: firstbad demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
#: The earliest moment that a zip file can hold.
_MOMENT = (1980, 1, 1, 0, 0, 0)


def wheels(folder: Path) -> list[Path]:
    """Write one wheel a version into the folder, which is made if it is not there; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_wheel(folder, version, side) for version, side in SIDES.items()]


def _write_wheel(folder: Path, version: str, side: int) -> Path:
    source = _SOURCE.read_text(encoding="utf-8")
    assert source.count(_SIDE_LINE) == 1
    about = f"nightly_photos-{version}.dist-info"
    files = {
        "nightly_photos/__init__.py": source.replace(_SIDE_LINE, f"SIDE = {side}"),
        f"{about}/METADATA": _METADATA.format(version=version),
        f"{about}/WHEEL": _WHEEL,
    }
    record = f"{about}/RECORD"
    lines = [f"{name},{_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""])
    path = folder / f"nightly_photos-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text)
    return path


def _digest(text: str) -> str:
    """As a wheel's RECORD spells it: sha256, URL-safe base64 without padding."""
    raw = hashlib.sha256(text.encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(raw).rstrip(b'=').decode()}"
