"""What a verdict needs to know besides its measurement: what the other trials of the ledger say.

Four things that no single trial can tell: what work the good end's steps hold, how fast its controls run
as a rule, which doubtful failures came twice, and which numbers the ends told. All of it is derived from
the ledger whenever a verdict is, so that a replay judges alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bisection.commits import State
from bisection.ledger import LedgerEntry
from bisection.measurement import Measurement, Outcome, Work

#: A doubtful failure is believed after so many alike of one state, on different workers where there are any.
ALIKE = 2
#: After so many alike another worker is no longer waited for: there seems to be none.
ALIKE_ON_ONE_WORKER = 3


@dataclass(frozen=True, kw_only=True)
class EndNumbers:
    """The two ends; ``halfway`` between the medians of what a command told there, None until both told."""

    good: State
    bad: State
    halfway: float | None = None


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """All of it may be missing: then nothing is refused, scaled or believed on its account."""

    work: Work | None = None  #: of the good end
    #: state of a control to the useful tokens a second that it makes on a machine that nothing slows down
    paces: Mapping[State, float] = field(default_factory=dict)
    believed: frozenset[tuple[State, str]] = frozenset()  #: doubtful failures that came again
    numbers: EndNumbers | None = None


ALONE = Circumstances()


def circumstances(good: State, bad: State, ledger: Sequence[LedgerEntry], workers: int) -> Circumstances:
    """Of a ledger. ``good`` and ``bad`` are the ends' states, ``workers`` how many serve the pool."""
    return Circumstances(
        work=_work_of(good, ledger),
        paces=_paces(ledger),
        believed=_believed(ledger, workers),
        numbers=_numbers(good, bad, ledger),
    )


def _numbers(good: State, bad: State, ledger: Sequence[LedgerEntry]) -> EndNumbers:
    told: dict[State, list[float]] = {good: [], bad: []}
    for entry in ledger:
        number = entry.measurement.number
        if entry.trial.is_evidence and entry.trial.state in told and number is not None:
            told[entry.trial.state].append(number)
    known = told[good] and told[bad]
    halfway = (median(told[good]) + median(told[bad])) / 2 if known else None
    return EndNumbers(good=good, bad=bad, halfway=halfway)


def _work_of(good: State, ledger: Sequence[LedgerEntry]) -> Work | None:
    """Of the first run of the good end that was timed: its own trial's, or one as a control."""
    for entry in ledger:
        measured, control = entry.measurement, entry.measurement.control
        if entry.trial.is_evidence and entry.trial.state == good and _is_whole(measured):
            return measured.work
        if control is not None and control.state == good and control.work.useful_tokens_per_second:
            return control.work
    return None


def _is_whole(measured: Measurement) -> bool:
    return measured.outcome is Outcome.COMPLETED and bool(measured.useful_tokens_per_second)


def _paces(ledger: Sequence[LedgerEntry]) -> dict[State, float]:
    """The second fastest run of each, so that an odd one decides nothing; of one or two the fastest.

    Not the median: machines drift to one side only. What is hot, shared or worn is slower than it was when
    somebody chose the limit, and nothing is faster.
    """
    rates: dict[State, list[float]] = {}
    for entry in ledger:
        control = entry.measurement.control
        rate = control.work.useful_tokens_per_second if control else None
        if control is not None and rate:
            rates.setdefault(control.state, []).append(rate)
    return {state: sorted(found)[-2 if len(found) > 2 else -1] for state, found in rates.items()}


def _believed(ledger: Sequence[LedgerEntry], workers: int) -> frozenset[tuple[State, str]]:
    seen: dict[tuple[State, str], list[str]] = {}
    for entry in ledger:
        measured = entry.measurement
        if measured.doubtful:
            seen.setdefault((measured.state, measured.signature), []).append(measured.worker)
    return frozenset(
        key
        for key, by in seen.items()
        if len(by) >= ALIKE and (workers == 1 or len(set(by)) > 1 or len(by) >= ALIKE_ON_ONE_WORKER)
    )
