"""Where a search stands between two trials: its answer so far, what it cost, what is expected still.

Derived from specification, ledger and running trials; nothing here is kept by the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bisection.credible import credible_groups
from bisection.forecast import play
from bisection.json_shapes import encode_fields
from bisection.ledger import LedgerEntry, Trial
from bisection.report_parts import Suspicion
from bisection.search import GOOD_END_IS_BAD, NO_CULPRIT, Search
from bisection.specification import BisectionSpec

VERSION = 1
#: The kind of event that tells it.
ANSWER_SO_FAR = "answer_so_far"
#: Suspects that are listed; the report has them all.
MOST_LISTED = 20
#: How many culprits are played to the end, drawn evenly from the belief.
PLAYED = 3
#: A line so long is not played: its trials take seconds to place, and a worker has others to serve.
LONGEST_PLAYED = 600


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Trials, and what they took. Seconds are the trials' own, one after another."""

    trials: float
    seconds: float | None
    gpu_hours: float | None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The answer so far, for people who do not want to wait for the last one."""

    level: int  #: 0: the range that was asked about; deeper ones lie inside a culprit
    after: int  #: finished trials that it rests on
    failed: bool  #: whether anything failed; before that, no suspect is accused
    credible: int  #: the fewest suspects that hold 95 % of the belief in suspects
    suspects: tuple[Suspicion, ...]  #: of these the likeliest, likeliest first
    no_culprit: float
    good_end_is_bad: float
    why: str  #: the same in one sentence
    spent: Cost
    remaining: Cost | None  #: expected, without flakes or skips; None where the line is too long to say

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **encode_fields(self)}


def progress(spec: BisectionSpec, ledger: Sequence[LedgerEntry], pending: Sequence[Trial]) -> Progress:
    """Where the search of the last level stands. Trials that run are in neither cost, but are played."""
    search = Search.replay(spec, ledger)
    probabilities = search.probabilities()
    groups = credible_groups(search.standing.posterior.belief)
    likely = sorted(
        (search.line.first_commit(group).hash for group in groups), key=lambda h: -probabilities[h]
    )
    return Progress(
        level=len(spec.levels) - 1,
        after=len(ledger),
        failed=any(seen.bad for seen in search.standing.evidence.observations),
        credible=len(groups),
        suspects=tuple(Suspicion(hash=h, probability=probabilities[h]) for h in likely[:MOST_LISTED]),
        no_culprit=probabilities[NO_CULPRIT],
        good_end_is_bad=probabilities[GOOD_END_IS_BAD],
        why=search.answer_now("", "").why.strip(),
        spent=_spent(spec, ledger),
        remaining=_remaining(spec, search, pending),
    )


def _spent(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> Cost:
    paid = [entry for entry in ledger if not entry.trial.taken_from]
    seconds = sum(entry.measurement.seconds for entry in paid)
    return Cost(trials=len(paid), seconds=seconds, gpu_hours=seconds * spec.gpus_per_trial / 3600)


def _remaining(spec: BisectionSpec, search: Search, pending: Sequence[Trial]) -> Cost | None:
    """The mean over culprits at even quantiles of the belief, each played to its end by the search itself."""
    if len(search.line) > LONGEST_PLAYED:
        return None
    ledger = search.ledger
    held = np.cumsum(search.standing.posterior.belief)
    quantiles = [(2 * n + 1) / (2 * PLAYED) for n in range(PLAYED)]
    groups = np.minimum(np.searchsorted(held, quantiles), len(search.line))
    steps = len(search.level.range.commits)
    trials = float(
        np.mean(
            [
                play(
                    spec,
                    _first_step(search, int(group)) if group < len(search.line) else steps,
                    ledger,
                    pending,
                )
                for group in groups
            ]
        )
    )
    trials += len(pending)
    if not ledger:
        return Cost(trials=trials, seconds=None, gpu_hours=None)
    seconds = trials * sum(entry.measurement.seconds for entry in ledger) / len(ledger)
    return Cost(trials=trials, seconds=seconds, gpu_hours=seconds * spec.gpus_per_trial / 3600)


def _first_step(search: Search, group: int) -> int:
    return search.level.range.position(search.line.first_commit(group).hash)
