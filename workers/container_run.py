"""A program that runs one trial's container, and tells how it ended from how its program ended.

Started by path under the supervisor (``python container_run.py ... -- podman run ... IMAGE COMMAND``), on
this host or on a node of a cluster. It holds the container's input: the first process in there ends when
that does (`ranks`), so a container of Docker's daemon, which is nobody's child here, dies with its owner
too. What only the place itself knows (GPUs, the node) is added to the words here. Standard library only.

Exit status: the command's. A file beside the trial says whether the container started, and whether
the kernel killed in it for memory.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

#: On every container of a trial's, with the trial's folder: by it they are found after a crash.
LABEL = "firstbad.trial"
_PR_SET_CHILD_SUBREAPER = 36
#: Podman's own processes tidy up after the container for a moment; a wedged one is not waited for.
_TIDYING_SECONDS = 10.0
_OF_THE_NODE = ("FIRSTBAD_NODES", "FIRSTBAD_NODE", "FIRSTBAD_FIRST_NODE", "FIRSTBAD_PORT")


def gpu_words(runtime: str, visible: str | None) -> list[str]:
    """The options that hand the host's GPUs on, or those of CUDA_VISIBLE_DEVICES alone.

    The container numbers them anew, so the variable itself stays outside.
    """
    chosen = [device for device in (visible or "").split(",") if device]
    if visible == "":
        return []
    if runtime == "docker":
        # Docker reads the value as a row of CSV: commas within one field need the quotes.
        return ["--gpus", f'"device={",".join(chosen)}"' if chosen else "all"]
    return [word for device in chosen or ["all"] for word in ("--device", f"nvidia.com/gpu={device}")]


def words_of_the_place(runtime: str, gpus: bool) -> list[str]:
    handed = [name for name in _OF_THE_NODE if name in os.environ]
    if runtime == "apptainer":  # its --env splits a value at commas; these variables it takes as they are
        handed += ["CUDA_VISIBLE_DEVICES"] if gpus and "CUDA_VISIBLE_DEVICES" in os.environ else []
        os.environ.update({f"APPTAINERENV_{name}": os.environ[name] for name in handed})
        return ["--nv"] if gpus else []
    words = [word for name in handed for word in ("--env", f"{name}={os.environ[name]}")]
    return words + (gpu_words(runtime, os.environ.get("CUDA_VISIBLE_DEVICES")) if gpus else [])


def end(program: str, folder: Path) -> None:
    """Kills and removes the containers of the trial in this folder."""
    found = _asked(program, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={LABEL}={folder}")
    for container in found.split():
        _asked(program, "kill", container)
        _asked(program, "rm", "--force", "--volumes", container)


def end_orphans(program: str) -> None:
    """Ends containers of trials whose folder is gone: nobody else will look for them."""
    ask = ("inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}')
    for container in _asked(program, "ps", "--all", "--quiet", "--filter", f"label={LABEL}").split():
        folder = _asked(program, *ask, container)
        if folder and not Path(folder).exists():
            end(program, Path(folder))


def state(program: str, name: str) -> dict[str, object]:
    """What is kept of how the container ended."""
    try:
        row = json.loads(_asked(program, "inspect", "--format", "{{json .State}}", name))
        return {
            "started": not str(row.get("StartedAt", "")).startswith("0001-"),
            "oom_killed": bool(row.get("OOMKilled")),
            "exit_code": int(row.get("ExitCode", 0)),
            "error": str(row.get("Error", ""))[:1000],
        }
    except (ValueError, AttributeError):
        return {"started": False, "oom_killed": False, "exit_code": 0, "error": "it was not created"}


def _asked(*command: str) -> str:
    """What the program prints; "" if it is not there or fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def _wait_for_the_tidying() -> None:
    """Podman's monitor, made our child by the kernel, ends by itself."""
    deadline = time.monotonic() + _TIDYING_SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run a trial's container and wait for it.")
    parser.add_argument("--folder", type=Path, required=True, help="the trial's own")
    parser.add_argument("--gpus", action="store_true", help="hand the GPUs of this place on")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    program, verb, *rest = options.command
    runtime = Path(program).name
    node = os.environ.get("FIRSTBAD_NODE", "0")
    daemonic = runtime in ("docker", "podman")
    name = f"firstbad-{options.folder.name}-{node}"
    words = [program, verb, *words_of_the_place(runtime, options.gpus)]
    if daemonic:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        end_orphans(program)
        words += ["--name", name, "--label", f"{LABEL}={options.folder}"]
    container = subprocess.Popen([*words, *rest], stdin=subprocess.PIPE)
    code = container.wait()
    if daemonic:
        row = state(program, name)
        _asked(program, "rm", "--force", "--volumes", name)
        _wait_for_the_tidying()
        (options.folder / f"container-{node}.json").write_text(json.dumps(row), encoding="utf-8")
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
