"""A Podman of a test's own: its images and containers in a folder of the test's, nothing of the machine's."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

#: What a small machine lets Podman do: its default network changes the host, its default limits are refused.
_CONFIGURATION = """
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
{runtime}
[containers]
netns = "none"
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
"""
_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""


class Podman:
    """Images and containers below ``folder``; `environment` leads any program to them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        runtime = 'runtime = "runc"' if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin") else ""
        (folder / "containers.conf").write_text(_CONFIGURATION.format(runtime=runtime))
        (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
        self.environment = {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def asked(self, *words: str, stdin: bytes = b"") -> str:
        """What podman prints. Raises CalledProcessError."""
        done = subprocess.run(
            ["podman", *words], env={**os.environ, **self.environment}, input=stdin, capture_output=True,
            timeout=120, check=True,
        )  # fmt: skip
        return done.stdout.decode().strip()

    def image_of_the_host(self) -> str:
        """The id of an image without files of its own: this machine's programs are mounted into it."""
        tree = io.BytesIO()
        with tarfile.open(fileobj=tree, mode="w") as tar:
            for name in ("proc", "sys", "dev", "etc", "tmp", "usr"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
            for name in ("bin", "sbin", "lib", "lib64"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(entry)
        return self.asked("import", "--quiet", "-", stdin=tree.getvalue())

    def containers(self) -> list[str]:
        return self.asked("ps", "--all", "--format", "{{.Names}}").split()


def host_mounts() -> list[dict[str, Any]]:
    """The system's programs, and this Python with its library."""
    folders = {"/usr", str(Path(sys.base_prefix).resolve())}
    return [
        {"source": folder}
        for folder in sorted(folders)
        if not any(folder != other and folder.startswith(f"{other}/") for other in folders)
    ]


def why_not(folder: Path) -> str:
    """Why no container can be started on this machine; "" if one can."""
    if shutil.which("podman") is None:
        return "podman is not installed"
    try:
        podman = Podman(folder)
        image = podman.image_of_the_host()
        mounts = [
            f"--mount=type=bind,src={mount['source']},dst={mount['source']},readonly"
            for mount in host_mounts()
        ]
        podman.asked("run", "--rm", "--network=none", *mounts, image, "/usr/bin/true")
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        return f"podman starts no container here: {said.decode(errors='replace').strip()[-300:]}"
    return ""
