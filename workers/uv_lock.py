"""A project's uv.lock as lines of ``name==version``, the form that everything else here reads.

uv itself works out what the project needs, offline and without building anything. Where packages
come from is the operator's choice: indexes that the lock names are passed over. Packages that lie in
the tree are left out, they are run from it. One that comes from a git repository is asked for by its
version and its commit, ``emerging-optimizers==0.2.0+git.1effa026``: a wheel of that name must be at
hand, since a commit must not choose where packages come from.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from workers.building import BuildHostError, build_environment, uv_program
from workers.requirement_lock import Unbuildable

_EXPORT = (
    "export", "--frozen", "--offline", "--no-config", "--no-python-downloads", "--no-progress",
    "--no-default-groups", "--no-emit-project", "--no-hashes", "--no-header", "--no-annotate",
)  # fmt: skip
#: Megatron Bridge's lock of 331 packages takes 0.2 s.
_SECONDS = 60.0
_FROM_GIT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+) @ git\+[^@\s]+@(?P<commit>[0-9a-f]{40})(?P<marker>\s*;.*)?"
)
_IN_THE_TREE = re.compile(r"(-e )?\.{0,2}/?[\w./-]*/[\w./-]*(\s*;.*)?")


def plain_lock(path: str, read: Callable[[str], str | None], *, must_be_current: bool = False) -> str | None:
    """The lock at a path of the tree in lines of ``name==version``; None if the tree has none.

    ``read`` gives the text of a file of the tree, or None. ``must_be_current`` refuses a uv.lock that its
    project has left behind. Raises Unbuildable, or BuildHostError where uv is missing.
    """
    text = read(path)
    if text is None or PurePosixPath(path).name != "uv.lock":
        return text
    project = read(str(PurePosixPath(path).with_name("pyproject.toml")))
    if project is None:
        raise Unbuildable("reading the lock", f"{path} has no pyproject.toml beside it")
    if must_be_current and (moved := _left_behind(text, project)):
        raise Unbuildable(
            "checking that the lock is current",
            f"{path} was not made from its pyproject.toml, which asks for: {', '.join(moved)}",
        )
    return _plain(_exported(text, project), _versions(text))


def _exported(lock: str, project: str) -> str:
    program = uv_program()
    if program is None:
        raise BuildHostError("a uv.lock needs uv on this host: install firstbad's extra `worker`")
    with tempfile.TemporaryDirectory(prefix="firstbad-lock-") as folder:
        (Path(folder) / "uv.lock").write_text(lock, encoding="utf-8")
        (Path(folder) / "pyproject.toml").write_text(project, encoding="utf-8")
        try:
            done = subprocess.run(
                [program, *_EXPORT],
                cwd=folder,
                env=build_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildHostError(f"uv export: {error}") from error
    if done.returncode != 0:
        raise Unbuildable("reading the lock", f"uv export: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def _left_behind(lock: str, project: str) -> list[str]:
    """The project's own requirements that the lock was not made from.

    uv's `--locked` asks the indexes anew; this compares what the lock itself says of the project, so it
    needs no network, and sees no change of groups, sources or overrides.
    """
    try:
        about = tomllib.loads(project)["project"]
        wanted = [Requirement(line) for line in about.get("dependencies", [])]
        packages = tomllib.loads(lock).get("package", [])
        own = next(p for p in packages if canonicalize_name(p["name"]) == canonicalize_name(about["name"]))
        rows = own.get("metadata", {}).get("requires-dist", [])
        known = {
            (canonicalize_name(row["name"]), SpecifierSet(row.get("specifier", "")))
            for row in rows
            if "extra ==" not in row.get("marker", "")
        }
    except (tomllib.TOMLDecodeError, InvalidRequirement, InvalidSpecifier, KeyError, StopIteration) as error:
        raise Unbuildable("checking that the lock is current", f"{type(error).__name__}: {error}") from error
    return [str(one) for one in wanted if (canonicalize_name(one.name), one.specifier) not in known]


def _versions(lock: str) -> dict[str, str]:
    try:
        packages = tomllib.loads(lock).get("package", [])
        return {str(package["name"]): str(package.get("version", "")) for package in packages}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise Unbuildable("reading the lock", f"uv.lock is not in uv's form: {error}") from error


def _plain(exported: str, versions: dict[str, str]) -> str:
    lines = []
    for line in exported.splitlines():
        found = _FROM_GIT.fullmatch(line)
        if found:
            version = f"{versions.get(found['name']) or '0'}+git.{found['commit'][:8]}"
            lines.append(f"{found['name']}=={version}{found['marker'] or ''}")
        elif not _IN_THE_TREE.fullmatch(line):
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)
