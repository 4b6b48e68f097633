"""The commands for what a descent found: take back only what is guilty inside of what the culprit carries.

As in `way_back`, commands are data. They start from the culprit or a later commit, at the top of a clone.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisection.finding import FindingKind, LevelFinding, LevelKind
from bisection.way_back import Command, Launch, Recipe


def way_inside(descent: Sequence[LevelFinding], launch: Launch | None) -> tuple[Recipe, ...]:
    """One recipe, for the innermost thing that was found; none where the culprit is opened no further."""
    found = [level for level in descent if level.kind is FindingKind.FOUND and level.commits]
    for level in reversed(found):
        if level.level is LevelKind.PIN or (level.level is LevelKind.MERGE and level.path and not level.lost):
            pins = list(dict.fromkeys(above.path for above in found if above.level is LevelKind.PIN))
            return (_in_a_pin(level, pins),)
        if level.level is LevelKind.PACKAGES:
            return (_package(level, launch),)
    return ()


def _in_a_pin(level: LevelFinding, pins: Sequence[str]) -> Recipe:
    commands = []
    above = ""
    for path in (pin for pin in pins if level.path == pin or level.path.startswith(f"{pin}/")):
        words = ("submodule", "update", "--init", "--checkout", "--", path[len(above) :].lstrip("/"))
        commands.append(Command(argv=("git", *(("-C", above) if above else ()), *words)))
        above = path
    inside = ("git", "-C", level.path)
    if level.lost:
        fix = level.commits[0]
        return Recipe(
            name="inside",
            title=f"Bring the lost fix into {level.path}",
            commands=(*commands, Command(argv=(*inside, "cherry-pick", fix))),
            note="The new pin lacks a commit that the old one had. Whether it applies was not tried.",
        )
    return Recipe(
        name="inside",
        title=f"Keep the culprit, and put {level.path} right before the guilty commit in it",
        commands=(*commands, Command(argv=(*inside, "checkout", "--detach", level.parent or ""))),
        note="What the culprit needs of later commits there is lost with it; "
        f"`git -C {level.path} revert {level.commits[0]}` keeps them, if it does not conflict.",
    )


def _package(level: LevelFinding, launch: Launch | None) -> Recipe:
    """``names`` are of our own making: a package with what it was and what it is, see `openings`."""
    python = launch.python if launch else ".venv/bin/python"
    name, _, rest = level.names[0].partition(" ")
    before = rest.rpartition(" -> ")[0]
    install = (python, "-m", "pip", "install", "--no-deps")
    title = f"Keep the lock, and take back only {name}"
    if before == "not there":
        commands = (Command(argv=(python, "-m", "pip", "uninstall", "--yes", name)),)
        return Recipe(name="inside", title=title, commands=commands, note="The old lock does not have it.")
    if "==" not in before:
        commands = (Command(argv=(*install, f"{name}=={before}")),)
        return Recipe(name="inside", title=title, commands=commands, note="In the job's environment.")
    return Recipe(name="inside", title=title, note=f"The old lock says: {before}.")
