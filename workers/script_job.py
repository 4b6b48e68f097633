"""A program that runs somebody's own command as a trial, and writes what it means as a rank's file.

Started by path (``python script_job.py SCRIPT SESSION COMMIT``) where a training job would start the probe.
SCRIPT and SESSION are JSON files: what to run and how to read it, and the environment of whoever asked. The
session is apart since an environment may hold secrets: it is gone when their program is. Standard library
only.

Exit codes mean what they mean to `git bisect run`: 0 good, 125 cannot be tested, 1 to 127 bad, 128 and above
(a signal, too) stop the whole search. Where failures are to be told apart, a bad command leaves no file, and
is judged as any other job that failed.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

SKIP_CODE = 125
ABORT_CODE = 128
_LONGEST_LINE = 2000
#: Of the caller's git: it would lead out of the trial's files and into their repository.
_OF_GIT = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
)
#: Of this trial, which must reach every process of it: the mark by which they are found.
_KEPT = ("FIRSTBAD_TRIAL_MARK",)


def main(arguments: list[str]) -> int:
    script_file, session_file, commit = arguments
    script: dict[str, Any] = json.loads(Path(script_file).read_text(encoding="utf-8"))
    session: dict[str, str] = json.loads(Path(session_file).read_text(encoding="utf-8"))
    top = Path.cwd()
    folder = top / script["folder"]
    if not folder.is_dir():
        return _tell("skip", f"this commit has no folder {script['folder']}")
    value_file = folder / script["value_file"] if script["value_file"] else None
    environment = {name: value for name, value in session.items() if name not in _OF_GIT}
    environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment |= {
        "FIRSTBAD_COMMIT": commit,
        "FIRSTBAD_REPOSITORY": script["repository"],
        "FIRSTBAD_TRIAL": os.environ["TMPDIR"],
        "GIT_CEILING_DIRECTORIES": str(top.parent),
        "PWD": str(folder),
    }
    if value_file:
        environment["FIRSTBAD_VALUE_FILE"] = str(value_file)
        if not value_file.parent.resolve().is_relative_to(top.resolve()):
            return _tell("skip", f"{script['value_file']} lies outside of the commit's files")
        if value_file.is_file() or value_file.is_symlink():
            value_file.unlink()  # one that is kept in git is no result
    try:
        code, told = _run(script["command"], folder, environment, script["metric"])
    except FileNotFoundError as error:
        return _tell("skip", f"this commit has no {error.filename}")
    except PermissionError as error:
        return _tell(
            "abort", f"{error.filename} cannot be executed: make it executable, or run it by a shell"
        )
    except OSError as error:
        return _tell("abort", f"the command cannot be started: {error}")
    if code >= ABORT_CODE:
        return _tell("abort", f"the command ended with {code}, which stops the search")
    if code == SKIP_CODE:
        return _tell("skip", f"the command says that this commit cannot be tested (exit code {SKIP_CODE})")
    if code:
        if script["tell_apart"]:
            return code
        return _tell("bad", f"the command ended with exit code {code}")
    if not script["metric"] and not value_file:
        return _tell("good", "the command ended with exit code 0")
    if value_file:
        told = (
            value_file.read_text(encoding="utf-8", errors="replace").strip()[:100]
            if value_file.is_file()
            else ""
        )
    number = _number(told)
    if number is None:
        where = f"{script['value_file']} holds" if value_file else "what it printed holds"
        return _tell("skip", f"the command succeeded, but {where} no number{f': {told!r}' if told else ''}")
    return _tell("good", f"the command ended with exit code 0, and told {number:g}", number)


def _run(
    command: list[str], folder: Path, environment: dict[str, str], metric: str | None
) -> tuple[int, str]:
    """The exit code, as a shell tells it, and what the last match of ``metric`` caught."""
    caught = ""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if metric else None,
        stderr=subprocess.STDOUT if metric else None,
    )
    if metric:
        assert process.stdout is not None
        pattern = re.compile(metric)
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            for match in pattern.finditer(line.decode(errors="replace").rstrip("\n")[:_LONGEST_LINE]):
                caught = match[1] if pattern.groups else match[0]
    code = process.wait()
    return (ABORT_CODE - code if code < 0 else code), caught or ""


def _number(text: str) -> float | None:
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _tell(verdict: str, said: str, number: float | None = None) -> int:
    row = {
        "version": 1,
        "rank": 0,
        "world_size": 1,
        "status": "completed" if verdict == "good" else "failed",
        "device": "host",
        "hardware": "",
        "data": {"real": True, "images": 0},
        "invalid": [said] if verdict == "skip" else [],
        "command": {"verdict": verdict, "said": said[:500], "number": number},
    }
    file = Path(os.environ["FIRSTBAD_PROBE_DIRECTORY"]) / "rank-0.json"
    file.write_text(json.dumps(row), encoding="utf-8")
    sys.stdout.write(f"firstbad: {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
