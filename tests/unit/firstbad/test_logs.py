"""Every line of a process says which bisection and trial it is about, ours and a library's alike."""

from __future__ import annotations

import json
import subprocess
import sys

_PROGRAM = """
import logging, sys, threading
import structlog
from structlog.contextvars import bound_contextvars
from firstbad.logs import configure_logs
from workers.pulse import Pulse

configure_logs(as_json=sys.argv[1] == "json")
log = structlog.get_logger()
beaten = threading.Event()

def beat():
    log.info("beat")
    beaten.set()

with bound_contextvars(bisection="b1", trial="t1", worker="gpu0@host"):
    log.info("trial starts", claim=1)
    logging.getLogger("celery.worker").warning("lost the %s", "broker")
    logging.getLogger("celery.worker").info("not worth a line")
    try:
        raise ValueError("a reason")
    except ValueError:
        log.exception("it broke")
    pulse = Pulse("lease", 60, beat)
    pulse.start()
    beaten.wait()
    pulse.stop()
log.info("idle")
"""


def _lines(form: str) -> list[str]:
    ran = subprocess.run([sys.executable, "-c", _PROGRAM, form], capture_output=True, text=True, check=True)
    return ran.stderr.splitlines()


def test_json_lines_carry_the_ids_of_what_they_are_about() -> None:
    rows = [json.loads(line) for line in _lines("json")]
    assert [row["event"] for row in rows] == ["trial starts", "lost the broker", "it broke", "beat", "idle"]
    about = [(row.get("bisection"), row.get("trial"), row.get("worker")) for row in rows]
    assert about == [("b1", "t1", "gpu0@host")] * 4 + [(None, None, None)]
    assert "ValueError: a reason" in rows[2]["exception"]
    assert all(row["timestamp"].endswith("Z") and row["level"] for row in rows)


def test_text_lines_carry_them_too() -> None:
    first, library, *_ = _lines("text")
    assert "bisection='b1'" in first
    assert "trial='t1'" in first
    assert "bisection='b1'" in library
    assert "lost the broker" in library
