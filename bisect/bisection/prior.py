"""Where the regression is likely to have begun, before any trial.

Here lives the prior over the hypotheses of `posterior`. It may look at a commit's
paths, pins and keys, never at a measurement.

A prior is a modest and cheap win: where a tenth of the commits carries four fifths of
the regressions it saves about two trials of ten bits' worth. It must never be able to
hide a culprit, so a share of it is uniform, and no commit is ever at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from bisection.commits import Commit
from bisection.states import Line

Floats = NDArray[np.float64]

#: Of reported regressions, the share where no commit is to blame: a flake, the machine, the data.
NO_CULPRIT = 0.06
#: The share where the good end was bad all along.
GOOD_END_IS_BAD = 0.02
#: The share of the prior that takes no notice of what a commit touches. A prior that is wrong cost four
#: points of accuracy without it and one and a half with it, for a tenth of a trial.
UNIFORM_SHARE = 0.2

#: Odds of a commit against one that touches ordinary source.
MOVES_A_PIN = 4.0  #: a bump brings a median of ten upstream commits at once
MOVES_THE_ENVIRONMENT = 2.0
TOUCHES_MEMORY = 2.0
TOUCHES_NO_CODE = 0.05  #: documentation, tests, automation; a script may still read one of them

NO_CODE_FOLDERS = frozenset({"docs", "doc", "tests", "test", ".github", ".gitlab", "skills", ".claude"})
NO_CODE_ENDINGS = frozenset({".md", ".rst", ".png", ".svg", ".ipynb"})
#: Words in the paths of what decides over memory and speed in a vision-language mixture of experts.
MEMORY_WORDS = (
    "attention", "config", "dispatch", "distributed", "expert", "model", "moe", "optim", "packing",
    "parallel", "recipe", "recompute", "router", "vision", "_vl",
)  # fmt: skip


def log_prior(line: Line, relevant_paths: Sequence[str] = ()) -> Floats:
    """(G+1,) logarithm of the prior: `GOOD_END_IS_BAD`, the first bad states, `NO_CULPRIT`."""
    suspects = len(line) - 1
    touched = np.array([_odds(line, group, relevant_paths) for group in range(1, len(line))])
    share = (1 - UNIFORM_SHARE) * touched / touched.sum() + UNIFORM_SHARE / suspects
    blame = (1 - NO_CULPRIT - GOOD_END_IS_BAD) * share
    return np.asarray(np.log(np.concatenate([[GOOD_END_IS_BAD], blame, [NO_CULPRIT]])))


def _odds(line: Line, group: int, relevant_paths: Sequence[str]) -> float:
    """How much likelier than a commit to ordinary source this one is to be the culprit."""
    commit, parent = line.first_commit(group), line.parent(group)
    if not commit.paths:
        return 1.0
    moved = 1.0
    if dict(commit.pins) != dict(parent.pins):
        moved *= MOVES_A_PIN
    if commit.environment_key != parent.environment_key:
        moved *= MOVES_THE_ENVIRONMENT
    return moved if moved > 1 else _odds_of_paths(commit, relevant_paths)


def _odds_of_paths(commit: Commit, relevant_paths: Sequence[str]) -> float:
    code = [path for path in commit.paths if is_code(path, relevant_paths)]
    if not code:
        return TOUCHES_NO_CODE
    size = 1 + math.log2(len(code)) / 4  # a change of 16 files has twice the odds of a change of one
    return size * (TOUCHES_MEMORY if any(_decides_memory(path) for path in code) else 1.0)


def is_code(path: str, relevant_paths: Sequence[str]) -> bool:
    """Whether a path can change a run: named relevant by the profile or, without that, no mere text."""
    if relevant_paths:
        return any(path.startswith(prefix) for prefix in relevant_paths)
    parsed = PurePosixPath(path)
    return parsed.suffix not in NO_CODE_ENDINGS and not NO_CODE_FOLDERS.intersection(parsed.parts[:-1])


def _decides_memory(path: str) -> bool:
    return any(word in path.lower() for word in MEMORY_WORDS)
