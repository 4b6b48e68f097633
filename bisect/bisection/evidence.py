"""What the finished trials say of each state: verdicts, failure signatures, workers, values.

Here a ledger becomes evidence. Verdicts come from `criteria.judge` alone; what is
added is what no single measurement can tell: which signature is the one looked
for, when a lost trial counts as untestable, and how sure a measured value makes
its verdict. No probability of a commit is computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bisection.circumstances import Circumstances
from bisection.criteria import Criterion, CriterionKind, Judgement, Verdict, judge
from bisection.ledger import LedgerEntry
from bisection.measurement import Outcome

#: A state whose trials are lost this often in a row counts as untestable: three crashes of the worker
#: are no longer chance, and a fourth costs as much as looking at a neighbour.
LOST_IN_A_ROW = 3
#: An end must be found untestable twice before that is believed: the whole answer hangs on it.
END_SKIPS = 2
#: Passes of the bad end after which failures elsewhere are no longer taken for the one looked for.
END_PASSES = 3


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One trial that says something of its state: it is good, or bad in the way looked for."""

    group: int
    bad: bool
    worker: str
    value: float | None  #: what the criterion compares; None where it compares none or it was cut off
    limit: float | None


@dataclass(kw_only=True)
class StateEvidence:
    """All that is known of one state. Counts of trials, in order of arrival."""

    passes: int = 0
    failures: int = 0
    skips: int = 0
    lost_in_a_row: int = 0
    passing_workers: set[str] = field(default_factory=set)
    failing_workers: set[str] = field(default_factory=set)
    skip_reasons: list[str] = field(default_factory=list)
    whole_peak: bool = False  #: a failing trial ran to its end, so the whole peak is known

    def count(self, worker: str, *, bad: bool) -> None:
        """One more trial that failed in the way looked for, or passed."""
        if bad:
            self.failures += 1
            self.failing_workers.add(worker)
        else:
            self.passes += 1
            self.passing_workers.add(worker)

    @property
    def testable(self) -> bool:
        return self.passes + self.failures > 0

    @property
    def untestable_trials(self) -> int:
        return self.skips + self.lost_in_a_row // LOST_IN_A_ROW


_UNTRIED = StateEvidence()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of a ledger at one moment."""

    states: dict[int, StateEvidence]  #: by group; a group without a finished trial is missing
    observations: tuple[Observation, ...]  #: in order of arrival
    signature: str  #: of the failure looked for; "" while nothing has failed
    anchored: (
        bool  #: whether that signature is known, and not only guessed from other states than the bad end
    )

    other_failures: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: by signature: the groups that failed in another way than the one looked for, in order of arrival

    def of(self, group: int) -> StateEvidence:
        return self.states.get(group, _UNTRIED)

    def known_untestable(self, last: int) -> list[int]:
        """Groups found untestable and never testable, ascending. ``last`` is the group of the bad end."""
        return sorted(
            group
            for group, state in self.states.items()
            if not state.testable and state.untestable_trials >= (END_SKIPS if group in (0, last) else 1)
        )

    def with_sides(self, bad: Sequence[bool]) -> Evidence:
        """The same with another side of each observation, in their order; what could not be judged stays."""
        states = {
            group: replace(state, passes=0, failures=0, passing_workers=set(), failing_workers=set())
            for group, state in self.states.items()
        }
        observations = []
        for item, is_bad in zip(self.observations, bad, strict=True):
            states[item.group].count(item.worker, bad=is_bad)
            observations.append(replace(item, bad=is_bad))
        return replace(self, states=states, observations=tuple(observations))

    def known_testable(self) -> list[int]:
        """Groups that gave a verdict, ascending."""
        return sorted(group for group, state in self.states.items() if state.testable)


@dataclass(frozen=True, kw_only=True)
class JudgedEntry:
    """A ledger entry with the group that it speaks of and its judgement."""

    group: int
    entry: LedgerEntry
    judgement: Judgement

    @classmethod
    def of(
        cls, criterion: Criterion, group: int, entry: LedgerEntry, circumstances: Circumstances
    ) -> JudgedEntry:
        judgement = judge(criterion, entry.measurement, circumstances)
        return cls(group=group, entry=entry, judgement=judgement)


def gather(criterion: Criterion, judged: Sequence[JudgedEntry], last: int) -> Evidence:
    """The evidence of judged entries. ``last`` is the group of the bad end."""
    signature, anchored = _signature_looked_for(criterion, judged, last)
    states: dict[int, StateEvidence] = {}
    observations: list[Observation] = []
    other_failures: dict[str, list[int]] = {}
    for item in judged:
        state = states.setdefault(item.group, StateEvidence())
        judgement, measurement = item.judgement, item.entry.measurement
        if judgement.verdict is Verdict.RETRY:
            state.lost_in_a_row += 1
            continue
        state.lost_in_a_row = 0
        if judgement.signature and (judgement.verdict is Verdict.SKIP or judgement.signature != signature):
            other_failures.setdefault(judgement.signature, []).append(item.group)
        if judgement.verdict is Verdict.SKIP:
            state.skips += 1
            state.skip_reasons.append(judgement.why)
            continue
        bad = judgement.verdict is Verdict.BAD
        if bad and judgement.signature != signature:
            state.skips += 1
            end = f"fails with {signature}" if signature else "does not fail"
            state.skip_reasons.append(
                f"it failed with {judgement.signature or 'no signature'}, where the bad end {end}"
            )
            continue
        state.count(measurement.worker, bad=bad)
        state.whole_peak |= bad and measurement.outcome is Outcome.COMPLETED
        observations.append(
            Observation(
                group=item.group,
                bad=bad,
                worker=measurement.worker,
                value=judgement.value if measurement.outcome is Outcome.COMPLETED else None,
                limit=judgement.limit,
            )
        )
    return Evidence(
        states=states,
        observations=tuple(observations),
        signature=signature,
        anchored=anchored,
        other_failures={name: tuple(groups) for name, groups in other_failures.items()},
    )


def _signature_looked_for(criterion: Criterion, judged: Sequence[JudgedEntry], last: int) -> tuple[str, bool]:
    """The failure that counts, and whether it is known for sure: the bad end's most common one.

    While the bad end has not failed, the failure of the youngest state that did stands in for it, and no
    answer may rest on it: it may be another bug. Once the bad end passed `END_PASSES` times there is no
    failure to look for, and all that fails elsewhere is another one.
    """
    failed = [item for item in judged if item.judgement.verdict is Verdict.BAD]
    if not failed:
        return "", True
    if criterion.kind is not CriterionKind.CRASH or criterion.signature:
        return failed[0].judgement.signature, True
    at_end = Counter(item.judgement.signature for item in failed if item.group == last)
    if at_end:
        return at_end.most_common(1)[0][0], True
    if sum(item.group == last and item.judgement.verdict is Verdict.GOOD for item in judged) >= END_PASSES:
        return "", True
    return max(failed, key=lambda item: item.group).judgement.signature, False
