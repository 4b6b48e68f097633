"""The commands that lead back to a good state, and those that show the regression by hand.

Commands are data: argument vectors and their shell text. Nothing is run here; the tests run every
one in a real repository. What a commit wrote (subjects, configuration values) is quoted, and
refused where a terminal would not show it as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bisection.commits import Commit, CommitRange, State
from bisection.configuration_delta import KeyChange, ValueType
from bisection.criteria import Verdict
from bisection.rendering.escaping import visible


class RevertOutcome(StrEnum):
    """What came of reverting the culprit on the bad end."""

    CLEAN = "clean"  #: git reverts it without a conflict
    CONFLICTS = "conflicts"
    NOT_TRIED = "not_tried"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command: ``argv`` as a process gets it, ``environment`` set for it alone."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """As one line for a POSIX shell."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*settings, shlex.join(self.argv)])


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Commands under a title, to be run from the top of a clone, in order."""

    name: str  #: stable, for programs: last_good, pins, revert, override, reproduce
    title: str
    commands: tuple[Command, ...] = ()
    note: str = ""  #: what to know before; or why there is no command

    @property
    def text(self) -> str:
        return "\n".join(command.text for command in self.commands)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a profile starts the repro: what `reproduce` and `override` are made from.

    ``{python}`` in the command stands for the environment's interpreter.
    """

    command: tuple[str, ...]
    override_syntax: str = ""  #: e.g. "{key}={value}"; empty: the launcher takes none
    overrides: Mapping[str, Any] = field(default_factory=dict)  #: those of the request
    environment: Mapping[str, str] = field(default_factory=dict)
    lock_path: str = ""  #: in the tree; empty: the environment is not made from a lock
    setup: tuple[tuple[str, ...], ...] = ()  #: commands that make the environment, from the top of the tree
    python: str = ".venv/bin/python"  #: the interpreter that ``setup`` makes, or an absolute path
    unlisted_pins: tuple[str, ...] = ()  #: gitlinks that .gitmodules does not list: no submodules of git's


#: Values that an override may carry: printable on one line, no quoting rules of its own.
_PLAIN = re.compile(r"[\w./:+,=@%-]+", re.ASCII)


def way_back(
    *,
    parent: Commit,
    culprit: Commit,
    changes: Sequence[KeyChange] | None,
    revert: RevertOutcome,
    conflicts: Sequence[str] = (),
    launch: Launch | None = None,
) -> tuple[Recipe, ...]:
    """The recipes that undo a culprit, the least invasive last. Each says why, where it has no commands."""
    unlisted = launch.unlisted_pins if launch else ()
    recipes = [_last_good(parent, unlisted)]
    moved = moved_paths(parent, culprit, launch.lock_path if launch else "")
    if moved:
        recipes.append(_pins(parent, culprit, moved, unlisted))
    recipes.append(_revert(culprit, revert, conflicts))
    if changes:
        recipes.append(_override(changes, launch))
    return tuple(recipes)


def moved_paths(parent: Commit, culprit: Commit, lock_path: str) -> tuple[str, ...]:
    """The gitlinks and the lock that the culprit moved and that its parent has."""
    pins = [path for path, pin in sorted(parent.pins.items()) if culprit.pins.get(path, pin) != pin]
    lock = [lock_path] if lock_path and lock_path in culprit.paths else []
    return (*pins, *lock)


def _last_good(parent: Commit, unlisted: Sequence[str]) -> Recipe:
    commands = [Command(argv=("git", "checkout", "--detach", parent.hash))]
    commands += _checked_out(parent.pins, unlisted)
    return Recipe(
        name="last_good",
        title="Go back to the last good commit",
        commands=tuple(commands),
        note="Its pins and its lock come with it." if parent.pins else "Its lock comes with it.",
    )


def _checked_out(pins: Mapping[str, str], unlisted: Sequence[str]) -> list[Command]:
    """The pins as they are: git's submodules by git, others in the clones that lie at their paths."""
    listed = sorted(set(pins) - set(unlisted))
    update = ("git", "submodule", "update", "--init", "--checkout", "--", *listed)
    others = [(path, pin) for path, pin in sorted(pins.items()) if path in unlisted]
    return [
        *([Command(argv=update)] if listed else []),
        *(Command(argv=("git", "-C", path, "checkout", "--detach", pin)) for path, pin in others),
    ]


def last_good_state(state: State) -> Recipe:
    """For a state that is no commit as it is: pairs of pins were the ends of the range."""
    commands = [Command(argv=("git", "checkout", "--detach", state.commit)), *_overridden_pins(state)]
    return Recipe(name="last_good", title="Go back to the last good state", commands=tuple(commands))


def _overridden_pins(state: State) -> list[Command]:
    """All pins as the commit has them, then those that the state has otherwise: a pin before those in it."""
    first = Command(argv=("git", "submodule", "update", "--init", "--recursive", "--checkout"))
    return [first, *(Command(argv=("git", "-C", at, "checkout", "--detach", pin)) for at, pin in state.pins)]


def _pins(parent: Commit, culprit: Commit, moved: Sequence[str], unlisted: Sequence[str]) -> Recipe:
    commands = [Command(argv=("git", "checkout", parent.hash, "--", *moved))]
    commands += _checked_out({path: parent.pins[path] for path in moved if path in parent.pins}, unlisted)
    whole = set(culprit.paths) <= set(moved)
    return Recipe(
        name="pins",
        title="Keep the rest and take back only what is pinned",
        commands=tuple(commands),
        note="The culprit changes nothing else."
        if whole
        else "The culprit changes other files too; they may need the newer pins.",
    )


def _revert(culprit: Commit, revert: RevertOutcome, conflicts: Sequence[str]) -> Recipe:
    mainline = ("-m", "1") if len(culprit.parents) > 1 else ()
    if revert is RevertOutcome.CONFLICTS:
        where = f" in {', '.join(visible(path) for path in conflicts)}" if conflicts else ""
        return Recipe(
            name="revert",
            title="Revert the culprit: it conflicts",
            note=f"Git cannot revert it on the bad end by itself: there are conflicts{where}. "
            f"`git revert {' '.join((*mainline, culprit.hash))}` shows them; "
            "`git revert --abort` undoes that.",
        )
    return Recipe(
        name="revert",
        title="Revert the culprit",
        commands=(Command(argv=("git", "revert", "--no-edit", *mainline, culprit.hash)),),
        note="Git reverts it on the bad end without a conflict."
        if revert is RevertOutcome.CLEAN
        else "Whether it conflicts was not tried.",
    )


def _override(changes: Sequence[KeyChange], launch: Launch | None) -> Recipe:
    def without(why: str) -> Recipe:
        return Recipe(name="override", title="Restore the old values by an override", note=why)

    if launch is None or not launch.override_syntax:
        return without("This launcher takes no overrides.")
    odd = [c.key for c in changes if not (_PLAIN.fullmatch(c.key) and overridable(c))]
    if odd:
        return without(f"An override cannot give back: {', '.join(visible(key) for key in odd)}.")
    restored = {**launch.overrides, **{change.key: change.before for change in changes}}
    return Recipe(
        name="override",
        title="Restore the old values by an override",
        commands=(launch_command(launch, restored),),
        note="From the culprit or a later commit, in its environment; the code stays as it is.",
    )


def overridable(change: KeyChange) -> bool:
    """Whether an override can restore the value: it existed, and can be written on one line."""
    return change.before_type not in (ValueType.ABSENT, ValueType.OBJECT) and (
        change.before_type is not ValueType.STRING
        or (bool(_PLAIN.fullmatch(change.before)) and change.before.lower() not in ("null", "true", "false"))
    )


def override_value(value: Any) -> str:
    """A value as Hydra's grammar, which Megatron Bridge's overrides use, reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)


def launch_command(launch: Launch, overrides: Mapping[str, Any]) -> Command:
    words = [word.replace("{python}", launch.python) for word in launch.command]
    if launch.override_syntax:
        words += [
            launch.override_syntax.replace("{key}", key).replace("{value}", override_value(value))
            for key, value in overrides.items()
        ]
    return Command(argv=tuple(words), environment=launch.environment)


def reproduce(commit: Commit, launch: Launch | None, state: State | None = None) -> Recipe:
    """From the top of a clone: the commit in a folder of its own, its environment, the repro.

    ``state`` is what the trial checked out, where that is not the commit as it is.

    The repro runs as the team runs it, without the probe: it shows the failure, not the breakdown.
    """
    at = state.commit if state else commit.hash
    folder = f"../firstbad-{at[:10]}"
    commands = [
        Command(argv=("git", "worktree", "add", "--detach", folder, at)),
        Command(argv=("cd", folder)),
    ]
    if state and state.pins:
        commands += _overridden_pins(state)
    else:
        commands += _checked_out(commit.pins, launch.unlisted_pins if launch else ())
    if launch is None:
        return Recipe(
            name="reproduce",
            title="Reproduce by hand",
            commands=tuple(commands),
            note="The profile's launch command was not recorded.",
        )
    commands += [Command(argv=argv) for argv in launch.setup]
    commands.append(launch_command(launch, launch.overrides))
    return Recipe(
        name="reproduce",
        title="Reproduce by hand",
        commands=tuple(commands),
        note="`git worktree remove` the folder afterwards.",
    )


def git_bisect_log(commits: CommitRange, verdicts: Mapping[str, Verdict], *, culprit: str | None) -> str:
    """A log that `git bisect replay` accepts: it restores what the trials said of whole commits.

    With a culprit, replaying ends by naming it. A verdict that contradicts the rest (a flake) would
    make git refuse the log; it is kept as a comment. "" without one good and one bad verdict that go
    together: there is nothing that git could go on from.
    """
    border = commits.position(culprit) if culprit else None
    lines = ["git bisect start --first-parent"]
    told = set()
    good_so_far, bad_so_far = -1, len(commits.commits)
    if border is None:
        good_so_far = max((i for i, v in _judged(commits, verdicts) if v is Verdict.GOOD), default=-1)
        bad_so_far = min((i for i, v in _judged(commits, verdicts) if v is Verdict.BAD), default=bad_so_far)
    # Git keeps one bad commit, the last it was told: the earliest one comes last.
    order = sorted(
        _judged(commits, verdicts),
        key=lambda pair: (_ORDER[pair[1]], -pair[0] if pair[1] is Verdict.BAD else pair[0]),
    )
    for position, verdict in order:
        commit = commits.commits[position]
        if border is not None:
            contradicts = (verdict is Verdict.GOOD) != (position < border) and verdict is not Verdict.SKIP
        else:
            contradicts = (verdict is Verdict.GOOD and position > bad_so_far) or (
                verdict is Verdict.BAD and position < good_so_far
            )
        if not contradicts:
            told.add(verdict)
        lines.append(f"# {verdict}: [{commit.hash}] {visible(commit.subject)}")
        lines.append(
            f"# left out, it contradicts the others: {verdict} {commit.hash}"
            if contradicts
            else f"git bisect {verdict} {commit.hash}"
        )
    if not {Verdict.GOOD, Verdict.BAD} <= told:
        return ""
    if culprit:
        subject = visible(commits.commits[commits.position(culprit)].subject)
        lines.append(f"# first bad commit: [{culprit}] {subject}")
    return "\n".join(lines) + "\n"


_ORDER = {Verdict.BAD: 0, Verdict.GOOD: 1, Verdict.SKIP: 2, Verdict.RETRY: 3}


def _judged(commits: CommitRange, verdicts: Mapping[str, Verdict]) -> list[tuple[int, Verdict]]:
    return [
        (position, verdicts[commit.hash])
        for position, commit in enumerate(commits.commits)
        if verdicts.get(commit.hash, Verdict.RETRY) is not Verdict.RETRY
    ]
