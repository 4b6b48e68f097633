"""The search: a specification and a ledger give the next trials, or the answer.

Here lives `Search`, which ties the pure parts together and holds the ledger. It does
no I/O, keeps no clock and draws nothing at random: the same specification and ledger
always give the same next trials, so a crash anywhere is a replay.

    ledger -> evidence -> posterior -> conclusion, or placement of the next trials
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from bisection import narration
from bisection.answers import AGREEING_TRIALS, OTHER_WORK_PROBLEM, Standing, best_answer, conclusion, may_end
from bisection.belief import Belief
from bisection.circumstances import Circumstances, circumstances
from bisection.criteria import CriterionKind
from bisection.evidence import Evidence, JudgedEntry, gather
from bisection.finding import Finding
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.levels import relevant_below
from bisection.other_steps import entries_for, needless, specification_for, with_others, worth_a_search
from bisection.placement import RARELY_UNTESTABLE, Outlook
from bisection.prior import log_prior
from bisection.skips import closed, untestable_chance
from bisection.specification import BisectionSpec
from bisection.spending import spent, trials_left
from bisection.states import Line
from bisection.steps import Step
from bisection.values import Values
from bisection.work_search import entries_of_work, for_work, specification_of_work, with_change

#: Names of the two hypotheses under which no commit is to blame, in `Search.probabilities`.
NO_CULPRIT = "no-culprit"
GOOD_END_IS_BAD = "good-end-is-bad"

#: What a trial is worth, in bits, that an answer will need if the belief in it is certain.
CONFIRMATION_WORTH = 0.1
#: Bits below which a trial is not worth starting at all.
WORTHLESS = 1e-4
#: The same beside running trials for a state that can probably not be tested: what runs tells as well where
#: testable states are. Where 30 % of 1000 commits are untestable this costs 29.3 trials in 15 rounds; with .3
#: it is 30.2 in 13, without it 32 in 9.
RISKY_WORTH = 0.36
#: A running trial can no longer matter if it is worth less than this share of the best one to start.
CANCELLED_BELOW = 0.2
#: What a new environment costs, in trials: building one takes about as long as a short run.
ENVIRONMENT_COST = 1.0


class IllegalEntry(ValueError):
    """The entry does not continue this ledger. Nothing was recorded.

    The caller's fault: replay the ledger as it was stored, in the order of its sequence numbers.
    """


class Search:
    """A bisection between two trials. Build it with `replay`; feed it with `record`; ask it with `next`.

    It runs on one level, the specification's last one unless another is asked for. What was measured
    on other levels counts where it is a state of this one.
    """

    def __init__(self, spec: BisectionSpec, level: int = -1) -> None:
        self.spec = spec
        self.level = spec.levels[level]
        self.line = Line.through(self.level)
        relevant = relevant_below(spec.relevant_paths, self.level.path)
        self._log_prior = log_prior(self.line, relevant) if len(self.line) > 1 else np.zeros(2)
        for group in range(1, len(self.line)):
            if self.line.first_commit(group).hash in spec.excluded:
                self._log_prior[group] = -np.inf
        self._environments = _numbered([group[0].environment_key for group in self.line.groups])
        self._known = {state.commit for known in spec.levels for state in known.states}
        self._follows = True  #: whether large steps beside the culprit's are looked for as well
        self._entries: list[LedgerEntry] = []
        self._keys: set[str] = set()
        self._placed: list[tuple[int, LedgerEntry]] = []  #: the entries that are evidence, by group

    @classmethod
    def replay(cls, spec: BisectionSpec, ledger: Sequence[LedgerEntry], level: int = -1) -> Search:
        """A search after these entries. Raises `IllegalEntry` if they are not one ledger of this range."""
        search = cls(spec, level)
        for entry in ledger:
            search.record(entry)
        return search

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        return tuple(self._entries)

    def record(self, entry: LedgerEntry) -> None:
        """Take in one finished trial. Raises `IllegalEntry`, and then changes nothing.

        Trials that are no evidence (`Trial.is_evidence`), and states off the line, are kept and tell nothing.
        """
        state = entry.trial.state
        if entry.sequence != len(self._entries):
            raise IllegalEntry(
                f"entry {entry.sequence} cannot follow {len(self._entries)} entries: "
                f"the next sequence number is {len(self._entries)}"
            )
        if state.commit not in self._known and entry.trial.is_evidence:
            raise IllegalEntry(f"the state {state.commit} is not a commit of any level")
        if entry.measurement.state != state:
            raise IllegalEntry(
                f"the measurement is of {entry.measurement.state.commit}, the trial was of {state.commit}"
            )
        if entry.trial.key in self._keys:
            raise IllegalEntry(f"trial {entry.trial.key} of {state.commit} was recorded before")
        self._entries.append(entry)
        self._keys.add(entry.trial.key)
        group = self.line.places.get(state)
        if group is not None and entry.trial.is_evidence:
            self._placed.append((group, entry))
        for derived in ("_circumstances", "_judged", "_evidence", "_standing", "_chance"):
            self.__dict__.pop(derived, None)

    def next(self, workers: int, pending: Sequence[Trial] = ()) -> tuple[Trial, ...] | Finding:
        """The trials to start now, or the answer.

        ``workers`` is how many trials may run at once, those in ``pending`` (started, not yet recorded)
        included. At most ``workers - len(pending)`` trials are returned; none of them means: wait for
        the pending ones. With an answer, what is pending may be cancelled.
        """
        over = conclusion(self._standing)
        if over is not None:
            return self._with_others(over, workers, pending)
        why_spent = spent(self.spec, self._entries, len(pending))
        if why_spent:
            return best_answer(self._standing, why_spent, "budget-spent")
        places = min(workers - len(pending), trials_left(self.spec, self._entries, len(pending)))
        chosen: list[Trial] = []
        outlook = self._outlook(pending)
        for _ in range(places):
            running = [*pending, *chosen]
            trial = self._place(outlook, running)
            if trial is None:
                break
            chosen.append(trial)
            group = self.line.places[trial.state]
            outlook = outlook.with_running(group, float(self._chance[group]))
        if chosen or pending:
            return tuple(chosen)
        return best_answer(self._standing, "No further trial can tell more.", "nothing-left-to-try")

    @property
    def standing(self) -> Standing:
        """All that is known and believed after the ledger so far."""
        return self._standing

    def answer_now(self, why: str, problem: str) -> Finding:
        """The best answer at this moment, for a caller who must stop: a deadline, a cancellation."""
        answer = self._with_others(best_answer(self._standing, why, problem), 0, ())
        assert isinstance(answer, Finding)  # without workers nothing can be started
        return answer

    def _with_others(
        self, answer: Finding, workers: int, pending: Sequence[Trial]
    ) -> tuple[Trial, ...] | Finding:
        """The answer with what the trials show beside its culprit, or trials that tell more of that."""
        if answer.problem == OTHER_WORK_PROBLEM and self.line.level.is_ground:
            changed = self._search_of_work().next(workers, pending)
            if isinstance(changed, Finding):
                return with_change(answer, changed, self._standing)
            return tuple(for_work(trial) for trial in changed)
        decision = with_others(
            answer, self._standing, partial(self._search_for, len(pending)), workers, pending
        )
        return (
            decision
            if isinstance(decision, Finding)
            else decision[: max(0, trials_left(self.spec, self._entries, len(pending)))]
        )

    def _search_of_work(self) -> Search:
        """The search for the commit that changed the work, after the same trials."""
        level = self.spec.levels.index(self.level)
        return Search.replay(specification_of_work(self.spec), entries_of_work(self._judged), level)

    def _search_for(self, pending: int, step: Step) -> Search | None:
        """The search for one more step, after the trials that it can use; None where it is not worth it."""
        if not self._follows or spent(self.spec, self._entries, pending):
            return None
        if not worth_a_search(self._standing, step, trials_left(self.spec, self._entries, 0)):
            return None
        search = Search(specification_for(self._standing, step))
        search._follows = False
        for entry in entries_for(search.line, self._entries):
            search.record(entry)
        return search

    def probabilities(self) -> dict[str, float]:
        """Belief in every suspect by hash, and in `NO_CULPRIT` and `GOOD_END_IS_BAD`; the sum is 1.

        A commit that is the same state as the one before it, or that was undone, has probability 0.
        """
        belief = self._standing.posterior.belief
        probabilities = {commit.hash: 0.0 for commit in self.level.range.suspects}
        for group in range(1, len(self.line)):
            probabilities[self.line.first_commit(group).hash] = float(belief[group])
        return {**probabilities, NO_CULPRIT: float(belief[-1]), GOOD_END_IS_BAD: float(belief[0])}

    def cancellable(self, pending: Sequence[Trial]) -> tuple[Trial, ...]:
        """The running trials that no longer matter: all of them once there is an answer, before that those
        that tell next to nothing beside what their workers could try instead.

        What `next` would ask for again is never among them, else a trial would be started and stopped
        for ever.
        """
        over = conclusion(self._standing)
        if over is not None:
            if over.problem == OTHER_WORK_PROBLEM and self.line.level.is_ground:
                return self._search_of_work().cancellable(pending)
            search_for = partial(self._search_for, len(pending))
            return needless(over, self._standing, search_for, self.spec.parallel, pending)
        standing = self._standing
        information = Outlook.of(standing.posterior).information(np.arange(len(self.line)))
        information[standing.open] += CONFIRMATION_WORTH * standing.needed(())
        least = CANCELLED_BELOW * information[standing.open].max(initial=0.0)
        kept = list(pending)
        for trial in pending:
            place = self.line.places.get(trial.state)
            others = [other for other in kept if other is not trial]
            if not trial.is_evidence:
                continue
            # A trial off the line was of the level above, which has its answer.
            # Of the others one is left, so that there is something to wait for.
            telling = place is not None and (not others or information[place] >= least)
            if telling or self._would_ask(trial, others):
                continue
            kept = others
        gone = [trial for trial in pending if trial not in kept]
        return tuple(trial for trial in gone if not self._would_ask(trial, kept))

    def _would_ask(self, trial: Trial, running: Sequence[Trial]) -> bool:
        asked = self.next(self.spec.parallel, running)
        return not isinstance(asked, Finding) and any(trial.state == other.state for other in asked)

    # -- what is known and believed ------------------------------------------------------------------------

    @cached_property
    def _standing(self) -> Standing:
        """What is known and believed after the ledger so far; made anew after each entry."""
        evidence = self._evidence
        testable, untestable = evidence.known_testable(), evidence.known_untestable(self.line.last)
        shut = closed(len(self.line), testable, untestable, self._chance)
        values = None
        if self.spec.criterion.kind is not CriterionKind.CRASH:
            values = Values.of(self.spec.criterion.kind, evidence.observations)
            evidence = evidence.with_sides(values.bad.tolist())
        return Standing(
            spec=self.spec,
            line=self.line,
            evidence=evidence,
            belief=self._believe(evidence, values),
            open=np.flatnonzero(~shut),
            values=values,
        )

    @cached_property
    def _circumstances(self) -> Circumstances:
        ends = self.line.state(0), self.line.state(self.line.last)
        return circumstances(*ends, self._entries, self.spec.workers)

    @property
    def _lacks_reference(self) -> bool:
        """Whether values are compared by the good end's, and that is not known."""
        known = self._circumstances.numbers
        if self.spec.criterion.kind.is_metric and self.spec.criterion.threshold is None:
            return known is None or known.halfway is None
        return self.spec.criterion.kind is CriterionKind.THROUGHPUT and self._circumstances.work is None

    @cached_property
    def _evidence(self) -> Evidence:
        return gather(self.spec.criterion, self._judged, self.line.last)

    @cached_property
    def _judged(self) -> list[JudgedEntry]:
        known = self._circumstances
        return [JudgedEntry.of(self.spec.criterion, group, entry, known) for group, entry in self._placed]

    @cached_property
    def _chance(self) -> NDArray[np.float64]:
        """(G,) the chance that each state is untestable."""
        evidence = self._evidence
        return untestable_chance(
            len(self.line), evidence.known_testable(), evidence.known_untestable(self.line.last)
        )

    def _believe(self, evidence: Evidence, values: Values | None) -> Belief:
        if values is not None:
            return Belief.of_values(self._log_prior, values)
        groups = np.array([item.group for item in evidence.observations], dtype=np.int64)
        bad = np.array([item.bad for item in evidence.observations], dtype=float)
        return Belief.of_verdicts(self._log_prior, groups, bad)

    # -- what to try next ----------------------------------------------------------------------------------

    def _outlook(self, pending: Sequence[Trial]) -> Outlook:
        outlook = Outlook.of(self._standing.posterior)
        for trial in pending:
            group = self.line.places.get(trial.state)
            if group is not None:
                outlook = outlook.with_running(group, float(self._chance[group]))
        return outlook

    def _place(self, outlook: Outlook, running: Sequence[Trial]) -> Trial | None:
        """The trial that is worth most for its cost, or None if none is worth a worker.

        While what runs may end the search by itself, nothing is started beside it: that trial would be
        wasted. Once it cannot, one more trial is needed in any case, and waiting saves nothing.
        """
        standing = self._standing
        end = self._untried_end(running)
        if end is not None:
            return self._trial(end, running, 0.0, Purpose.END)
        if not len(standing.open) or standing.drift is not None:
            return None
        places = [self.line.places[trial.state] for trial in running if trial.state in self.line.places]
        if places and may_end(standing, places):
            return None
        information = outlook.information(standing.open)
        needed = CONFIRMATION_WORTH * standing.needed(places)
        chance = (1 - self._chance)[standing.open]
        worth = (information + needed) * chance
        best = int(np.argmax(worth / self._cost(running)[standing.open]))
        risky = bool(running) and chance[best] < 1 - RARELY_UNTESTABLE
        if worth[best] < (RISKY_WORTH if risky else WORTHLESS):
            return None
        group = int(standing.open[best])
        purpose = Purpose.SEARCH
        tried = standing.evidence.of(group).testable
        if group in (0, self.line.last) and not tried:
            purpose = Purpose.END
        elif tried and needed[best] > information[best]:
            purpose = Purpose.CONFIRM
        return self._trial(group, running, float(information[best]), purpose)

    def _untried_end(self, running: Sequence[Trial]) -> int | None:
        """The bad end until its failure is known, where that is the one that is looked for.

        Where it cannot be tested, the good end tells whether anything can; where the values climb slowly,
        from where on they do; of speeds, what work they are compared by; of a metric, what its limit is.
        """
        standing = self._standing
        at = {self.line.places.get(trial.state) for trial in running}
        for end in (self.line.last, 0):
            state = standing.evidence.of(end)
            wanted = not state.testable or (end == self.line.last and not standing.evidence.anchored)
            if end not in at and wanted and end in standing.open:
                return end
            if not (state.untestable_trials or standing.drift is not None or self._lacks_reference):
                break
        return None

    def _cost(self, running: Sequence[Trial]) -> NDArray[np.float64]:
        """(G,) what a trial of each state costs, in plain trials."""
        trials = [*(entry.trial for entry in self._entries), *running]
        places = {self.line.places.get(trial.state) for trial in trials} - {None}
        made = {self._environments[place] for place in places if place is not None}
        return np.where(np.isin(self._environments, [0, *made]), 1.0, 1 + ENVIRONMENT_COST)

    def _trial(self, group: int, running: Sequence[Trial], bits: float, purpose: Purpose) -> Trial:
        standing, state = self._standing, self.line.state(group)
        same = [trial for trial in running if trial.state == state]
        earlier = [entry for entry in self._entries if entry.trial.state == state]
        attempts = [trial.attempt for trial in same] + [entry.trial.attempt for entry in earlier]
        evidence = standing.evidence.of(group)
        whole_peak_wanted = (
            self.spec.criterion.kind is CriterionKind.OUT_OF_MEMORY
            and not evidence.whole_peak
            and (evidence.failures > 0 or bool(same))
            and all(trial.enforce_capacity for trial in same)
        )
        bad = bool(standing.posterior.belief[: group + 1].sum() >= 0.5)
        agreeing = evidence.failing_workers if bad else evidence.passing_workers
        measured_by = {entry.measurement.worker for entry in earlier} - {""}
        another_wanted = len(agreeing) < AGREEING_TRIALS and len(measured_by) < self.spec.workers
        return Trial(
            state=state,
            attempt=max(attempts, default=0) + 1,
            purpose=purpose,
            why=narration.trial_reason(
                self.line, standing.evidence, standing.posterior, group, purpose, bits
            ),
            enforce_capacity=not whole_peak_wanted,
            avoid_workers=tuple(sorted(measured_by)) if another_wanted else (),
        )


def _numbered(keys: Sequence[str]) -> NDArray[np.int64]:
    """A number for each distinct key, from 1; 0 for an unknown environment, which costs nothing extra."""
    numbers = {"": 0}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
