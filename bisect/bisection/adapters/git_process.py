"""Running git: one environment for every command, bounded in time, with nothing left behind.

Only this file starts git. Callers pass full hashes and their own constants; a word
of a user's reaches a command line only in `ref_resolution`: behind
``--end-of-options``, or after it was seen to be nothing but hexadecimal digits.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_CONFIGURATION = Path(__file__).with_name("gitconfig")

#: What git may inherit: where programs are, how to reach the network, and ssh's keys.
_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "GIT_SSL_CAINFO", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip

#: What git says of broken objects, packs, indexes, refs, HEAD and configuration. Not "bad object" and a
#: hash alone: so it also speaks of a commit that was never here.
_DAMAGE = re.compile(
    r"corrupt|is empty$|unable to unpack|inflate:|bad object refs/|missing (?:blob|tree|object)"
    r"|did not send all necessary objects|failed to traverse parents|could not read [0-9a-f]{40}"
    r"|unable to read (?:tree|sha1)"
    r"|invalid sha1 pointer|hash mismatch|(?:index|pack) ?file .* is (?:too small|not a GIT packfile)"
    r"|\.(?:pack|idx) (?:is|has|does|cannot)\b|wrong index v|not a git repository: '"
    r"|ignoring broken ref|unexpected line in .*packed-refs|bad config|key does not contain a section",
    re.IGNORECASE | re.MULTILINE,
)


class MirrorError(ValueError):
    """Git could not answer. ``problem`` names the page of the error catalogue."""

    problem = "git-failed"


class GitError(MirrorError):
    """A git command failed on this host. ``stderr`` holds what git said."""

    def __init__(self, command: str, stderr: str) -> None:
        super().__init__(f"git {command} failed: {stderr.strip()[-2000:] or 'without a message'}")
        self.stderr = stderr

    @property
    def shows_damage(self) -> bool:
        """Whether git met a broken file of a repository: the mirror's, or one that it fetched from."""
        return bool(_DAMAGE.search(self.stderr))


def git_environment(folder: Path) -> dict[str, str]:
    """The environment of every git command in the bare repository ``folder``."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {
        **inherited,
        "GIT_DIR": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(_CONFIGURATION),
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": "file:https:ssh",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }


def run_git(
    folder: Path,
    *arguments: str,
    stdin: bytes | None = None,
    timeout_seconds: float = 300.0,
    environment: Mapping[str, str] | None = None,
    accept: Sequence[int] = (0,),
) -> bytes:
    """Standard output of one git command; GitError if it fails or takes too long."""
    try:
        process = subprocess.Popen(
            ["git", *arguments],
            cwd=folder,
            env={**git_environment(folder), **(environment or {})},
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        missing = "it was not fetched yet" if not folder.exists() else "install git on this host"
        raise GitError(arguments[0], f"{error.strerror}: {error.filename}; {missing}") from error
    try:
        output, errors = process.communicate(stdin, timeout=timeout_seconds)
    except BaseException as error:
        # The whole group: a fetch has children that hold our pipes.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise GitError(arguments[0], f"it took more than {timeout_seconds:g} s") from error
        raise
    if process.returncode != 0:
        failure = GitError(arguments[0], errors.decode(errors="replace"))
        # merge-base answers "none" (1) also where it could not read a commit on the way.
        if process.returncode not in accept or failure.shows_damage:
            raise failure
    return output


def git_version() -> tuple[int, int]:
    """Major and minor version of the git on this machine."""
    words = subprocess.run(["git", "version"], capture_output=True, text=True, check=True).stdout.split()
    major, minor = words[2].split(".")[:2]
    return int(major), int(minor)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file; the kernel lets go of it when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
