"""What the machine lets a process do to itself: a network and mounts of its own, a small disk, a cut."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

_NEW_NETWORK, _NEW_MOUNTS = 0x40000000, 0x00020000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1


def isolate() -> tuple[bool, bool]:
    """(network, mounts): whether this process and its children have their own from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    network = libc.unshare(_NEW_NETWORK) == 0
    mounts = libc.unshare(_NEW_MOUNTS) == 0
    if network:
        set_loopback(up=True)
    if mounts:  # else what we mount would be seen by everybody
        mounts = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode == 0
    return network, mounts


def set_loopback(*, up: bool) -> None:
    """Cut or heal every connection over the loopback address of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))[1]
        flags = flags | _UP if up else flags & ~_UP
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags))


def mount_small_disk(folder: Path, megabytes: int) -> bool:
    """A file system of that size at the folder, gone with this process's namespace."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


def unmount(folder: Path) -> None:
    """Also while a dying process still has its folder there."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


def fill(file: Path) -> None:
    """Write until the disk takes no more. Deleting the file is the relief."""
    with suppress(FileNotFoundError), file.open("ab", buffering=0) as sink:
        for size in (2**20, 4096, 512, 1):
            block = b"\0" * size
            while True:
                try:
                    sink.write(block)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    break
        os.fsync(sink.fileno())
