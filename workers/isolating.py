"""A trial's command shut in by bubblewrap: another user, processes and files of its own, no network.

The file system is made of what is named here and nothing else, so that no file of the service, of the
worker or of another trial needs to be thought of. What a container gives, without an image.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bisection.adapters.isolation import Isolation
from workers.launching import Launch

#: The trial's own folders: what it may write. The log and the result of its supervisor lie beside them.
OWN_FOLDERS = ("home", "tmp", "probe", "workspace")
PROGRAMS = ("bwrap", "setpriv", "prlimit")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: Programs, libraries and what they look up. Not all of /etc: secrets of services lie there.
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/group", "/etc/hosts",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/nsswitch.conf",
    "/etc/passwd", "/etc/ssl/certs", "/etc/pki/tls/certs",
)  # fmt: skip
_OF_THE_NETWORK = ("/etc/resolv.conf",)
_OF_A_GPU = ("/dev/nvidia*", "/dev/infiniband")
_SECONDS = 60.0


class CannotIsolate(Exception):
    """This host cannot run a trial as its profile asks. The message says what to mend."""


def isolated(launch: Launch, isolation: Isolation, folder: Path) -> Launch:
    """The launch with its command shut in; the trial's ``folder`` has OWN_FOLDERS, which become the user's.

    Raises CannotIsolate where this host cannot: it is tried with a command that does nothing, lest a
    commit be blamed for the host.
    """
    for name in OWN_FOLDERS if os.getuid() == 0 else ():
        _give(folder / name, _user(isolation))
    readable = [path for path in _readable(launch) if path.exists()]
    own = [folder / name for name in OWN_FOLDERS]
    inside = [
        *_seen(isolation, launch), *_ways_to(readable + own),
        *(word for path in readable for word in ("--ro-bind", str(path), str(path))),
        *(word for path in own for word in ("--bind", str(path), str(path))),
        "--chdir", str(launch.folder),
    ]  # fmt: skip
    words = shut_in(isolation, inside)
    _try(words)
    return replace(launch, command=(*words, str(launch.python), *launch.command[1:]))


def shut_in(isolation: Isolation, inside: list[str]) -> list[str]:
    """The words before a command. ``inside`` says to bubblewrap what is seen besides the system."""
    system = [*_files(_SYSTEM), "--proc", "/proc", "--dev", "/dev"]
    words = [*_needed("bwrap"), *_namespaces(isolation), *system, *inside, "--"]
    return [*words, *_limits(isolation), *_rights(isolation)]


def refusal(isolation: Isolation) -> str:
    """Why this host cannot do it, by trying; "" where it can."""
    try:
        _try(shut_in(isolation, []))
    except CannotIsolate as error:
        return str(error)
    return ""


def _try(words: list[str]) -> None:
    try:
        done = subprocess.run(
            [*words, "/bin/true"],
            env={"PATH": _PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotIsolate(f"bubblewrap did not end within {_SECONDS:g} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise CannotIsolate(f"bubblewrap cannot shut a trial in here: {said}")


def _namespaces(isolation: Isolation) -> list[str]:
    # Root makes namespaces as root, so that the trial's user is a real one; others need a user namespace.
    words = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--new-session"]
    words += ["--die-with-parent"]
    if os.getuid() == 0:
        words += ["--cap-drop", "ALL", *(w for cap in ("SETUID", "SETGID", "SETPCAP") for w in _kept(cap))]
    else:
        words += ["--unshare-user"]
    return words if isolation.network else [*words, "--unshare-net"]


def _kept(capability: str) -> tuple[str, str]:
    return "--cap-add", f"CAP_{capability}"  # for setpriv, which drops them


def _seen(isolation: Isolation, launch: Launch) -> list[str]:
    words = _files(_OF_THE_NETWORK) if isolation.network else []
    words += ["--perms", "1777", "--tmpfs", "/tmp", "--perms", "1777", "--tmpfs", "/dev/shm"]
    if launch.environment.get("FIRSTBAD_DEVICE") == "cuda":
        words += ["--ro-bind", "/sys", "/sys"]
        for pattern in _OF_A_GPU:
            for device in sorted(Path("/").glob(pattern.lstrip("/"))):
                words += ["--dev-bind", str(device), str(device)]
    return words


def _files(paths: tuple[str, ...]) -> list[str]:
    """Read-only under their own names; links of a merged /usr as the links that they are."""
    words: list[str] = []
    for path in paths:
        if os.path.islink(path) and os.path.dirname(path) == "/":
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind-try", path, path]
    return words


def _ways_to(paths: list[Path]) -> list[str]:
    """The folders above, empty and passable: bubblewrap would make them for their owner alone."""
    above = sorted({parent for path in paths for parent in path.parents if str(parent) != "/"})
    return [
        word
        for parent in above
        if not parent.is_relative_to("/usr")
        for word in ("--perms", "0755", "--dir", str(parent))
    ]


def _readable(launch: Launch) -> Iterator[Path]:
    """What the launch reads, with the interpreter that its environment's Python is a link to."""
    yield from launch.reads
    python = launch.python
    for _ in range(10):
        prefix = python.parent.parent
        if not prefix.is_relative_to("/usr"):
            yield prefix
        if not python.is_symlink():
            return
        python = Path(os.path.normpath(python.parent / os.readlink(python)))


def _limits(isolation: Isolation) -> list[str]:
    words = [*_needed("prlimit"), "--core=0"]
    for name, most in (
        ("data", isolation.memory_bytes),
        ("nproc", isolation.processes),
        ("nofile", isolation.open_files),
        ("fsize", isolation.file_bytes),
    ):
        if most is not None:
            words.append(f"--{name}={most}")
    return [*words, "--"]


def _rights(isolation: Isolation) -> list[str]:
    """Words that give up root; none for a worker that is not."""
    if os.getuid() != 0:
        return []
    user = _user(isolation)
    return [
        *_needed("setpriv"), f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
        "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--",
    ]  # fmt: skip


def _user(isolation: Isolation) -> pwd.struct_passwd:
    try:
        user = pwd.getpwnam(isolation.user)
    except KeyError:
        raise CannotIsolate(f"there is no user {isolation.user!r} on this host: make one") from None
    if user.pw_uid == 0:
        raise CannotIsolate(f"{isolation.user!r} is root: name a user without rights in isolation.user")
    return user


def _give(folder: Path, user: pwd.struct_passwd) -> None:
    """Before anything of the trial runs. A file that is the user's already keeps its times."""
    for parent, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(parent, name)
            if os.lstat(path).st_uid != user.pw_uid:
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _needed(program: str) -> list[str]:
    found = shutil.which(program, path=_PATH)
    if found is None:
        package = "bubblewrap" if program == "bwrap" else "util-linux"
        raise CannotIsolate(f"{program} is not installed: install {package}, or remove `isolation`")
    return [found]
