"""What a state's training job runs in: an interpreter that exists, a virtual environment, or an image.

An environment is named by what decides it: kind, Python, platform, the locked packages that are in it
and which of them pip installs, and the content of the profile's `inputs`: a Dockerfile, its base image,
patches, pyproject.toml. Packages that the profile names as overlays are apart (`wheels`), and so are
compiled helpers: a commit that moves only those shares it. Images are `images`' matter.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bisection.adapters.profiles import Profile
from bisection.adapters.training_environments import Environment
from workers import compiled_helpers, images
from workers.building import (
    BuildHostError,
    BuildSteps,
    Built,
    Claim,
    build_environment,
    build_once,
    throw_out_unused,
    uv_program,
)
from workers.environment_inputs import digests
from workers.requirement_lock import Pin, Unbuildable, normalised, read_lock, with_overrides
from workers.wheels import Overlay, make_overlay

#: Tells of a Python what decides an environment; and, of one that exists, what is installed in it.
_DESCRIBE = """
import importlib.metadata, json, platform, sys, sysconfig
print(json.dumps({
    "version": platform.python_version(), "implementation": sys.implementation.cache_tag,
    "platform": sysconfig.get_platform(), "libc": "-".join(platform.libc_ver()),
    "installed": sorted({f"{d.metadata['Name']}=={d.version}" for d in importlib.metadata.distributions()}),
}))
"""
_VERSION = 1
#: Of environments, overlays, helpers and images together: about ten of an image with CUDA and torch.
BUDGET_BYTES = 200 * 2**30
_ENVIRONMENTS, _OVERLAYS = "environments", "overlays"


@dataclass(frozen=True, kw_only=True)
class PreparedEnvironment:
    """What a trial is started with."""

    key: str  #: equal exactly for equal environments, overlays included
    python: Path
    overlays: tuple[Overlay, ...]  #: to be put on PYTHONPATH, in this order
    image: str = ""  #: in which ``python`` is, as the container's program names it; "": on this host
    #: While one of them is held, nothing of this is thrown out. A trial's processes hold them, too.
    claims: tuple[Claim, ...] = field(default=(), compare=False, repr=False)

    @property
    def locks(self) -> tuple[int, ...]:
        """The descriptors of the claims, for a supervisor to hold."""
        return tuple(claim.descriptor for claim in self.claims)


class Environments:
    """The environments of one host, below ``root``; any number of workers may share them."""

    def __init__(self, root: Path, budget_bytes: int = BUDGET_BYTES) -> None:
        self._root = root
        self._budget_bytes = budget_bytes

    def prepare(
        self,
        wanted: Environment,
        lock_text: str | None,
        packages: Mapping[str, str],
        *,
        tree: Path | None = None,
        image_program: str | None = None,
        progress: Callable[[str], None] = lambda _: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> PreparedEnvironment:
        """Makes what is missing. ``packages`` are the state's overrides of the lock.

        ``tree`` holds the state's files, and gets the compiled helpers. ``image_program`` is Docker or
        Podman, where this host keeps the image that is run. Raises Unbuildable (the state's fault),
        BuildHostError (the host's) or Cancelled.
        """
        watch = (progress, cancelled)
        if wanted.kind == "image":
            prepared, made_now = self._image(wanted, packages, tree, image_program, *watch)
        else:
            prepared, made_now = self._python(wanted, lock_text, packages, tree, *watch)
        if made_now:
            self._throw_out_unused(progress)
        return prepared

    def _python(
        self,
        wanted: Environment,
        lock_text: str | None,
        packages: Mapping[str, str],
        tree: Path | None,
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> tuple[PreparedEnvironment, bool]:
        pins = _pins(wanted, lock_text, packages)
        apart = [normalised(name) for name in wanted.overlay]
        base = [pin for pin in pins if pin.name not in apart]
        claims: list[Claim] = []
        made_now = False
        if wanted.kind == "interpreter":
            assert wanted.python is not None  # the catalogue's shape guarantees it
            python = Path(wanted.python)
            if not python.exists():  # not the host's passing trouble: no repeat mends it
                raise Unbuildable(
                    "finding the interpreter",
                    f"{python} does not exist on this host: set environment.python in the profile to one "
                    "that does",
                )
            described = describe_python(python)
            key = _digest("interpreter", str(python), described)
        else:
            inputs = digests(tree, wanted.inputs) if tree else {}
            described, key, built = self._venv(wanted, base, inputs, progress, cancelled)
            python = built.folder / "venv" / "bin" / "python"
            claims.append(built.claim)
            made_now = built.made_now
        overlays = []
        for pin in _in_order(apart, pins):
            overlay = make_overlay(
                self._root / _OVERLAYS,
                pin,
                python=python,
                platform=f"{described['implementation']} {described['platform']}",
                find_links=wanted.find_links,
                progress=progress,
                cancelled=cancelled,
            )
            overlays.append(overlay)
            claims += [overlay.claim] if overlay.claim else []
        for folder in wanted.helpers if tree else ():
            assert tree is not None
            helpers = compiled_helpers.put_helpers(self._root, tree, folder, python, key, progress, cancelled)
            claims += [helpers] if helpers else []
        key = _digest(key, [overlay.key for overlay in overlays])
        prepared = PreparedEnvironment(key=key, python=python, overlays=tuple(overlays), claims=tuple(claims))
        return prepared, made_now

    def _image(
        self,
        wanted: Environment,
        packages: Mapping[str, str],
        tree: Path | None,
        program: str | None,
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> tuple[PreparedEnvironment, bool]:
        assert wanted.python is not None  # the catalogue's shape guarantees it
        if packages:
            raise Unbuildable("reading the lock", "the state moves packages, which an image has built in")
        python, host = Path(wanted.python), describe_python(Path(sys.executable))["platform"]
        if wanted.image:
            key = _digest(_VERSION, "image", wanted.image, wanted.python, host)
            if program not in images.PROGRAMS:
                # Apptainer and Pyxis, and the programs of a cluster's nodes, fetch it themselves.
                return PreparedEnvironment(key=key, python=python, overlays=(), image=wanted.image), False
            identity, built = images.named_image(self._root, key, wanted.image, program, progress, cancelled)
        else:
            if tree is None or program is None:
                raise BuildHostError("an image is built here from the files of a state, by Docker or Podman")
            key = _digest(
                *(_VERSION, "dockerfile", wanted.dockerfile, wanted.python, wanted.base_image, host),
                *(list(wanted.build_options), program, digests(tree, wanted.paths)),
            )
            identity, built = images.built_image(self._root, key, wanted, program, tree, progress, cancelled)
        return PreparedEnvironment(
            key=key, python=python, overlays=(), image=identity, claims=(built.claim,)
        ), built.made_now

    def _throw_out_unused(self, progress: Callable[[str], None]) -> None:
        kept = (_ENVIRONMENTS, _OVERLAYS, compiled_helpers.FOLDER, images.FOLDER)
        places = [self._root / name for name in kept]
        for name in throw_out_unused(places, self._budget_bytes, images.forget_image):
            progress(f"threw out the environment {name}, which was longest not used")

    def _venv(
        self,
        wanted: Environment,
        pins: Sequence[Pin],
        inputs: Mapping[str, str],
        progress: Callable[[str], None],
        cancelled: Callable[[], bool],
    ) -> tuple[dict[str, object], str, Built]:
        maker = Path(wanted.python or sys.executable)
        described = {name: value for name, value in describe_python(maker).items() if name != "installed"}
        by_pip = [normalised(name) for name in wanted.pip_first]
        unknown = sorted(set(by_pip) - {pin.name for pin in pins})
        if unknown:
            raise Unbuildable(
                "reading the lock",
                f"the profile's pip_first names {', '.join(unknown)}, which is not locked here",
            )
        decides = [described, sorted(pin.requirement for pin in pins), sorted(by_pip)]
        key = _digest(_VERSION, "venv", *decides, *([inputs] if inputs else []))

        def build(folder: Path, steps: BuildSteps) -> None:
            venv = folder / "venv"
            python = venv / "bin" / "python"
            tool = uv_program()
            # pip is in it only where pip has work to do: its own version is nobody's pin.
            bare = ["--without-pip"] if tool and not by_pip else []
            steps.run("making a virtual environment", [str(maker), "-m", "venv", *bare, str(venv)])
            lock = folder / "lock.txt"
            lock.write_text("".join(f"{pin.requirement}\n" for pin in pins), encoding="utf-8")
            links = [word for link in wanted.find_links for word in ("--find-links", link)]
            first = [pin.requirement for pin in pins if pin.name in by_pip]
            if first:
                # With what they depend on: which that is (CUDA libraries or none) is the machine's choice.
                plain = [pin for pin in pins if not pin.extras]
                limits = folder / "constraints.txt"
                limits.write_text("".join(f"{pin.requirement}\n" for pin in plain), encoding="utf-8")
                command = [str(python), "-m", "pip", "install", "--constraint", str(limits), *links, *first]
                steps.run(f"installing {', '.join(by_pip)} with pip", command)
            rest = folder / "rest.txt"
            others = [pin.requirement for pin in pins if pin.name not in by_pip]
            rest.write_text("".join(f"{line}\n" for line in others), encoding="utf-8")
            if others:
                program = (
                    [tool, "pip", "install", "--python", str(python), "--compile-bytecode"]
                    if tool
                    else [str(python), "-m", "pip", "install"]
                )
                steps.run(
                    f"installing {len(others)} locked packages with {'uv' if tool else 'pip'}",
                    [*program, "--no-deps", *links, "-r", str(rest)],
                )

        built = build_once(self._root / _ENVIRONMENTS, key, build, progress=progress, cancelled=cancelled)
        if built.made_now:
            progress("the environment is built")
        return described, key, built


def image_program(profile: Profile) -> str | None:
    """What keeps and runs the profile's image on this host; None where nothing here does."""
    container = profile.container
    here = container is not None and profile.slurm is None and container.runtime in images.PROGRAMS
    return container.runtime if container and here else None


def describe_python(python: Path) -> dict[str, object]:
    """Version, platform and installed packages of an interpreter. Raises BuildHostError."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _DESCRIBE],
            env=build_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=True,
        )
        row: dict[str, object] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise BuildHostError(
            f"{python} does not run as a Python: {error}. Set environment.python in the profile "
            "to one that does"
        ) from error
    return row


def _pins(wanted: Environment, lock_text: str | None, packages: Mapping[str, str]) -> tuple[Pin, ...]:
    if wanted.lock is None:
        if packages:
            raise Unbuildable("reading the lock", "the state moves packages, but the profile names no lock")
        return ()
    if lock_text is None:
        raise Unbuildable("reading the lock", f"{wanted.lock} is not in the tree of this state")
    pins = with_overrides(read_lock(lock_text, wanted.lock), packages, wanted.lock)
    missing = sorted({normalised(name) for name in wanted.overlay} - {pin.name for pin in pins})
    if missing:
        raise Unbuildable(
            "reading the lock", f"{wanted.lock} has no line for the overlay {', '.join(missing)}"
        )
    return pins


def _in_order(names: Sequence[str], pins: Sequence[Pin]) -> list[Pin]:
    return [pin for name in names for pin in pins if pin.name == name]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
