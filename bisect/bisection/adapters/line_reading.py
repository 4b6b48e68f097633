"""Lines of commits other than from good to bad: between any two commits, along a merge, further back.

Each is a list of steps that a search can run on. Hashes only; no ref and no user's word comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from bisection.adapters.git_process import run_git
from bisection.adapters.range_reading import read_commits
from bisection.commits import Commit


def parents_of(folder: Path, commit: str) -> list[str]:
    return run_git(folder, "rev-list", "--parents", "-n1", commit).decode().split()[1:]


def read_path(
    folder: Path, start: str, end: str, relevant: Sequence[str], environment: Sequence[str]
) -> tuple[tuple[Commit, ...], int] | None:
    """See `Mirror.read_path`; None where the two share no history."""
    bases = run_git(folder, "merge-base", start, end, accept=(0, 1)).decode().split()
    if not bases:
        return None
    back, forth = (_since(folder, bases[0], commit) for commit in (start, end))
    # Each part by itself: the merge base need not be the first parent of what follows it.
    base, older, newer = (
        read_commits(folder, part, relevant, environment) if part else () for part in (bases[:1], back, forth)
    )
    # On the way back a step touches what the commit touched that it takes away.
    taken = [replace(commit, paths=gone.paths) for commit, gone in pairwise((*base, *older))]
    return (*older[-1:], *reversed(taken), *newer) if older else (*base, *newer), len(back)


def _since(folder: Path, base: str, commit: str) -> list[str]:
    """The commits on a line of first parents that contain ``base``, oldest first, without itself."""
    words = ("rev-list", "--first-parent", "--reverse", commit, f"^{base}")
    line = run_git(folder, *words).decode().split()
    # Once it came in, by a merge or as a parent, all that follow have it: so look for the first.
    lower, upper = 0, len(line) - 1
    while lower < upper:
        middle = (lower + upper) // 2
        if run_git(folder, "merge-base", base, line[middle]).decode().strip() == base:
            upper = middle
        else:
            lower = middle + 1
    return line[lower:]


def read_merge(
    folder: Path, merge: str, trunk: str, relevant: Sequence[str], environment: Sequence[str]
) -> tuple[Commit, ...]:
    """See `Mirror.read_merge`; only the two ends if the other parent brings nothing."""
    first, second = trunk, next(parent for parent in parents_of(folder, merge) if parent != trunk)
    words = ("rev-list", "--first-parent", "--reverse", second, f"^{first}")
    branch = run_git(folder, *words).decode().split()
    before, merged = (read_commits(folder, [c], relevant, environment)[0] for c in (first, merge))
    if not branch:
        return before, merged
    left = parents_of(folder, branch[0])[:1]
    on_branch = read_commits(folder, [*left, *branch], relevant, environment)
    return (before, *(commit for commit in on_branch if commit.hash != first), merged)


def read_back(
    folder: Path, commit: str, steps: int, relevant: Sequence[str], environment: Sequence[str]
) -> tuple[Commit, ...]:
    """A commit after so many before it, oldest first; fewer where history begins. First parents."""
    words = ("rev-list", "--first-parent", "--reverse", f"--max-count={steps + 1}", commit)
    return read_commits(folder, run_git(folder, *words).decode().split(), relevant, environment)
