"""Container images that trials run in: named by digest, or built from a state's own Dockerfile.

An image is built once a host, under the environment's key as its tag, from a folder that holds the named
inputs and nothing else. Docker and Podman keep the images themselves; here is a folder for each, which
says what is in their keeping, so that locks, remembered failures and the disk's budget are those of every
other environment. What runs in an image is `containers`' matter.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from bisection.adapters.training_environments import Environment
from workers.building import BuildHostError, BuildSteps, Built, build_environment, build_once
from workers.environment_inputs import copy_out
from workers.requirement_lock import Unbuildable

FOLDER = "images"
#: Those that build images, and keep them on the host that runs them.
PROGRAMS = ("docker", "podman")
#: Local, so that no registry is asked for it.
_REPOSITORY = "localhost/firstbad-environment"
_RECORD = "image.json"
#: What Podman, and BuildKit with plain progress, write before each instruction of a Dockerfile.
_INSTRUCTION = re.compile(r"^(?:STEP (\d+/\d+: .*)|#\d+ \[(?:[^\]]*\s)?(\d+/\d+\] .*))$", re.MULTILINE)
_SECONDS = 60.0


def named_image(
    root: Path,
    key: str,
    reference: str,
    program: str,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> tuple[str, Built]:
    """The identity of an image that the profile names; it is pulled where it lacks. Raises BuildHostError."""

    def pull(folder: Path, steps: BuildSteps) -> int:
        present = _identity(program, reference)
        if present is None:
            try:
                steps.run(f"pulling {reference}", [program, "pull", reference])
            except Unbuildable as error:  # which image it is, the profile says, not the state
                raise BuildHostError(f"{error.step}: {error.log.strip()[-1000:]}") from error
        identity = _identity(program, reference)
        if identity is None:
            raise BuildHostError(f"{program} pulled {reference}, and does not know it")
        return _write_record(folder, program, identity, removes=reference if present is None else None)

    return _kept(root, key, program, pull, progress, cancelled)


def built_image(
    root: Path,
    key: str,
    wanted: Environment,
    program: str,
    tree: Path,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> tuple[str, Built]:
    """The identity of the image of the tree's Dockerfile, built if it is not there.

    Raises Unbuildable with the instruction that failed, BuildHostError or Cancelled.
    """
    assert wanted.dockerfile is not None
    dockerfile = wanted.dockerfile
    tag = f"{_REPOSITORY}:{key}"

    def build(folder: Path, steps: BuildSteps) -> int:
        context = folder / "context"
        context.mkdir()
        copy_out(tree, wanted.paths, context)
        if not (context / dockerfile).is_file():
            raise Unbuildable("reading the Dockerfile", f"{dockerfile} is not in the tree of this state")
        base = [f"--build-arg=BASE_IMAGE={wanted.base_image}"] if wanted.base_image else []
        command = [
            *(program, "build", "--tag", tag, "--file", str(context / dockerfile), "--force-rm"),
            *(*base, *wanted.build_options, str(context)),
        ]
        try:
            steps.run("building the image", command)
        except Unbuildable as error:
            raise Unbuildable(_failed_step(error.log), error.log) from error
        shutil.rmtree(context)
        identity = _identity(program, tag)
        if identity is None:
            raise BuildHostError(f"{program} built {tag}, and does not know it")
        return _write_record(folder, program, identity, removes=tag)

    return _kept(root, key, program, build, progress, cancelled)


def forget_image(folder: Path) -> None:
    """Removes from Docker's or Podman's keeping what was built or pulled for a folder of ours."""
    record = _read_record(folder)
    if record.get("removes"):
        _ask(record["program"], "image", "rm", record["removes"])


def _kept(
    root: Path,
    key: str,
    program: str,
    build: Callable[[Path, BuildSteps], int],
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> tuple[str, Built]:
    if shutil.which(program) is None:
        raise BuildHostError(
            f"{program} is not on this host: install it, or use an environment of another kind"
        )

    def is_there(folder: Path) -> bool:
        identity = _read_record(folder).get("identity")
        return identity is not None and _identity(program, identity) is not None

    # Somebody may have removed the image behind our back, `podman system prune` for instance.
    built = build_once(
        root / FOLDER, key, build, progress=progress, cancelled=cancelled, still_whole=is_there
    )
    return _read_record(built.folder)["identity"], built


def _failed_step(log: str) -> str:
    instructions = [found[1] or found[2] for found in _INSTRUCTION.finditer(log)]
    return f"building the image, step {instructions[-1][:200]}" if instructions else "building the image"


def _write_record(folder: Path, program: str, identity: str, *, removes: str | None) -> int:
    """The bytes of the image, layers that it shares with others included."""
    row = {"program": program, "identity": identity, "removes": removes}
    (folder / _RECORD).write_text(json.dumps(row), encoding="utf-8")
    size = _ask(program, "image", "inspect", "--format", "{{.Size}}", identity)
    return int(size or 0) if removes else 0


def _read_record(folder: Path) -> dict[str, str]:
    try:
        row: dict[str, str] = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return row


def _identity(program: str, reference: str) -> str | None:
    return _ask(program, "image", "inspect", "--format", "{{.Id}}", reference)


def _ask(program: str, *words: str) -> str | None:
    """None where the program says no."""
    try:
        done = subprocess.run(
            [program, *words],
            env=build_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildHostError(f"{program} {words[0]} {words[1]}: {error}") from error
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
