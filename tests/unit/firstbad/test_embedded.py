"""The parts of `firstbad up` that need no server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from firstbad.embedded import PortTaken, find_running, listen
from firstbad.settings import read_settings


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of the loopback address that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_that_was_named_and_is_taken_is_said_so(taken: int, tmp_path: Path) -> None:
    named = read_settings({"FIRSTBAD_HOME": str(tmp_path), "FIRSTBAD_PORT": str(taken)})
    with pytest.raises(PortTaken, match=str(taken)):
        listen(named)


def test_a_free_port_that_was_named_is_used(taken: int, tmp_path: Path) -> None:
    free = taken + 1 if taken < 65535 else taken - 1
    settings = read_settings({"FIRSTBAD_HOME": str(tmp_path), "FIRSTBAD_PORT": str(free)})
    with listen(settings) as listener:
        assert listener.getsockname() == ("127.0.0.1", free)


def test_a_port_that_nobody_named_and_is_taken_is_passed_over(taken: int, tmp_path: Path) -> None:
    settings = replace(read_settings({"FIRSTBAD_HOME": str(tmp_path)}), port=taken)
    with listen(settings) as listener:
        assert listener.getsockname()[1] != taken


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"url": "http://127.0.0.1:1", "pid": 1}'])
def test_what_a_killed_server_left_behind_is_no_running_server(content: str, tmp_path: Path) -> None:
    settings = read_settings({"FIRSTBAD_HOME": str(tmp_path)})
    settings.token_file.write_text("fb_x\n")
    settings.server_file.write_text(content)
    assert find_running(settings) is None


def test_something_else_on_the_port_is_no_running_server(taken: int, tmp_path: Path) -> None:
    settings = read_settings({"FIRSTBAD_HOME": str(tmp_path)})
    settings.token_file.write_text("fb_x\n")
    row = {"url": f"http://127.0.0.1:{taken}", "pid": 1}
    settings.server_file.write_text(json.dumps(row))
    assert find_running(settings) is None


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


def test_who_answers_at_the_port_of_an_up_that_was_killed_is_somebody_else(tmp_path: Path) -> None:
    settings = read_settings({"FIRSTBAD_HOME": str(tmp_path)})
    settings.token_file.write_text("token")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with HTTPServer(("127.0.0.1", 0), _Healthy) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        settings.server_file.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        assert find_running(settings) is not None
        settings.server_file.write_text(json.dumps({"url": url, "pid": ended.pid}))
        assert find_running(settings) is None
        other.shutdown()
