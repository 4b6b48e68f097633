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
    """See `Mirror.read_path`; None where the two first-parent lines share no commit."""
    back, forth = (_first_parents(folder, commit) for commit in (start, end))
    places = {commit: place for place, commit in enumerate(forth)}
    shared = next((place for place, commit in enumerate(back) if commit in places), None)
    if shared is None:
        return None
    older = read_commits(folder, back[shared::-1], relevant, environment)
    newer = read_commits(folder, forth[places[back[shared]] :: -1], relevant, environment)
    # On the way back a step touches what the commit touched that it takes away.
    taken = [replace(commit, paths=gone.paths) for commit, gone in pairwise(older)]
    return (older[-1], *reversed(taken), *newer[1:]), shared


def _first_parents(folder: Path, commit: str) -> list[str]:
    """A commit and its line of first parents, youngest first."""
    return run_git(folder, "rev-list", "--first-parent", commit).decode().split()


def read_merge(
    folder: Path, merge: str, relevant: Sequence[str], environment: Sequence[str]
) -> tuple[Commit, ...]:
    """See `Mirror.read_merge`; only the two ends if the second parent brings nothing."""
    first, second = parents_of(folder, merge)[:2]
    words = ("rev-list", "--first-parent", "--reverse", second, f"^{first}")
    branch = run_git(folder, *words).decode().split()
    trunk, merged = read_commits(folder, [first, merge], relevant, environment)
    if not branch:
        return trunk, merged
    left = parents_of(folder, branch[0])[:1]
    on_branch = read_commits(folder, [*left, *branch], relevant, environment)
    return (trunk, *(commit for commit in on_branch if commit.hash != first), merged)


def read_back(
    folder: Path, commit: str, steps: int, relevant: Sequence[str], environment: Sequence[str]
) -> tuple[Commit, ...]:
    """A commit after so many before it, oldest first; fewer where history begins. First parents."""
    words = ("rev-list", "--first-parent", "--reverse", f"--max-count={steps + 1}", commit)
    return read_commits(folder, run_git(folder, *words).decode().split(), relevant, environment)
