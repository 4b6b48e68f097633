"""The bundled broker is a real server that keeps what it acknowledged."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import redis

from firstbad import broker


def client(socket: Path) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(socket))


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    socket = tmp_path / "valkey.sock"
    with (tmp_path / "log").open("ab") as log:
        first = broker.start(tmp_path / "data", socket, log)
        with client(socket) as connection:
            for number in range(50):
                connection.lpush("work", number)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert not broker.answers(socket)
        second = broker.start(tmp_path / "data", socket, log)
        with client(socket) as connection:
            assert connection.llen("work") == 50
        broker.shut_down(socket)
        assert second.wait(timeout=10) == 0


def test_a_server_that_cannot_start_says_where_its_log_is(tmp_path: Path) -> None:
    damaged = tmp_path / "data" / "appendonlydir"
    damaged.mkdir(parents=True)
    (damaged / "appendonly.aof.manifest").write_text("this is no manifest\n")
    with (tmp_path / "log").open("ab") as log, pytest.raises(broker.BrokerFailed, match="log"):
        broker.start(tmp_path / "data", tmp_path / "valkey.sock", log)
