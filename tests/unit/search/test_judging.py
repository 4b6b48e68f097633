"""What a measurement means beside others: doubtful failures, refusals near the limit, unequal work, pace."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bisection.circumstances import Circumstances, circumstances
from bisection.criteria import Criterion, CriterionKind, Verdict, judge
from bisection.finding import FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Control, Measurement, Outcome, OutOfMemory, Step, Work
from memory_models.breakdown import GIB, Category, Component, MemoryBreakdown
from tests.unit.search.drawn_lines import CAPACITY, DrawnLine, drive, hash_of, peak_of
from tests.unit.search.drawn_values import DrawnValues, steps_at

RECORDED = Path(__file__).parents[1] / "report" / "recorded"
GOOD = "0" * 40

CRASH = Criterion(kind=CriterionKind.CRASH)
OOM = Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=CAPACITY)
SPEED = Criterion(kind=CriterionKind.THROUGHPUT, threshold=50.0)


def recorded(name: str) -> Measurement:
    return Measurement.from_json(json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))


def ledger(*measurements: Measurement) -> list[LedgerEntry]:
    seen: dict[str, int] = {}
    entries = []
    for number, measured in enumerate(measurements):
        seen[measured.state.key] = seen.get(measured.state.key, 0) + 1
        trial = Trial(state=measured.state, attempt=seen[measured.state.key], purpose=Purpose.SEARCH)
        entries.append(LedgerEntry(sequence=number, trial=trial, measurement=measured))
    return entries


def known(*measurements: Measurement, workers: int = 1) -> Circumstances:
    """What a ledger of these tells, where the first one is of the good end."""
    return circumstances(measurements[0].state, measurements[-1].state, ledger(*measurements), workers)


# -- doubtful failures ---------------------------------------------------------------------------------------

ILLEGAL = recorded("base").evolve(
    outcome=Outcome.CRASHED,
    reason="AcceleratorError: CUDA error: an illegal memory access was encountered",
    signature="AcceleratorError: CUDA error: an illegal memory access was encountered @ moe.py:dispatch",
    doubtful=True,
    worker="a",
)
ELSEWHERE = ILLEGAL.evolve(signature=ILLEGAL.signature.replace("dispatch", "combine"), worker="b")


@pytest.mark.parametrize("criterion", [CRASH, OOM, SPEED])
def test_a_doubtful_failure_that_came_once_is_measured_again(criterion: Criterion) -> None:
    judgement = judge(criterion, ILLEGAL, known(ILLEGAL))
    assert judgement.verdict is Verdict.RETRY
    assert "illegal memory access" in judgement.why


@pytest.mark.parametrize(
    ("others", "workers", "believed"),
    [
        ([ILLEGAL.evolve(worker="b")], 2, True),
        ([ILLEGAL], 2, False),  # the one worker may be broken
        ([ILLEGAL, ILLEGAL], 2, True),  # no other one seems to come
        ([ILLEGAL], 1, True),
        ([ELSEWHERE], 2, False),  # another place in the code
    ],
)
def test_a_doubtful_failure_counts_once_it_came_alike_on_another_worker_where_there_is_one(
    others: list[Measurement], workers: int, believed: bool
) -> None:
    beside = known(ILLEGAL, *others, workers=workers)
    assert (judge(CRASH, ILLEGAL, beside).verdict is Verdict.BAD) is believed
    assert (judge(OOM, ILLEGAL, beside).verdict is Verdict.SKIP) is believed


class FlakyMemory(DrawnLine):
    """Each good state fails with an illegal memory access the first time that it is tried."""

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        found = super().run(trial, worker)
        if trial.attempt == 1 and found.outcome is Outcome.COMPLETED:
            return ILLEGAL.evolve(state=trial.state, worker=worker)
        return found


@pytest.mark.parametrize("kind", [CriterionKind.CRASH, CriterionKind.OUT_OF_MEMORY])
def test_illegal_memory_accesses_that_come_once_a_state_accuse_nobody(kind: CriterionKind) -> None:
    line = FlakyMemory(drawing="......X......", kind=kind)
    finding, entries = drive(line, line.specification(workers=2))
    assert (finding.kind, finding.commits) == (FindingKind.FOUND, (hash_of(6),))
    assert any(entry.measurement.doubtful for entry in entries)


class BrokenDispatch(DrawnLine):
    """The culprit really makes an illegal memory access."""

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        found = super().run(trial, worker)
        if found.outcome is Outcome.CRASHED:
            return ILLEGAL.evolve(state=trial.state, worker=worker)
        return found


def test_a_commit_that_makes_illegal_memory_accesses_is_found_by_repeats() -> None:
    line = BrokenDispatch(drawing="......X......")
    finding, _ = drive(line, line.specification(workers=2))
    assert (finding.kind, finding.commits) == (FindingKind.FOUND, (hash_of(6),))


# -- near the limit ------------------------------------------------------------------------------------------


def refused(allocated: int, reserved: int, requested: int = GIB) -> Measurement:
    oom = OutOfMemory(
        component="experts",
        phase="forward",
        requested_bytes=requested,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
    )
    return recorded("base").evolve(outcome=Outcome.OUT_OF_MEMORY, oom=oom, peak=None)


@pytest.mark.parametrize(
    ("allocated", "reserved", "verdict"),
    [
        (CAPACITY - GIB // 2, CAPACITY - GIB // 2, Verdict.BAD),
        (CAPACITY - 8 * GIB, CAPACITY - GIB // 2, Verdict.BAD),  # the rest is in pieces
        (CAPACITY - GIB, CAPACITY - GIB, Verdict.BAD),  # torch rounds what it asks for
        (CAPACITY - 8 * GIB, CAPACITY - 8 * GIB, Verdict.SKIP),
    ],
)
def test_a_refusal_is_bad_only_where_the_limit_asked_about_made_it(
    allocated: int, reserved: int, verdict: Verdict
) -> None:
    judgement = judge(OOM, refused(allocated, reserved))
    assert judgement.verdict is verdict
    if verdict is Verdict.SKIP:
        assert "73.00 GiB" in judgement.why
        assert "80.00 GiB" in judgement.why
        assert "smaller" in judgement.why


def test_a_peak_within_the_capacity_that_was_reserved_beyond_it_is_no_pass_until_a_limit_was_enforced() -> (
    None
):
    peak = replace(peak_of(CAPACITY - GIB), reserved_bytes=CAPACITY + GIB)
    free = recorded("base").evolve(peak=peak, capacity_bytes=None)
    judgement = judge(OOM, free)
    assert judgement.verdict is Verdict.SKIP
    assert "reserved 81.00 GiB" in judgement.why
    assert judge(OOM, free.evolve(capacity_bytes=CAPACITY)).verdict is Verdict.GOOD
    assert judge(OOM, free.evolve(peak=peak_of(CAPACITY + 512))).verdict is Verdict.BAD


# -- the window of the steady steps --------------------------------------------------------------------------


def timed(*seconds: float, warmup_steps: int = 1, compiled: frozenset[int] = frozenset()) -> Work:
    steps = tuple(
        Step(
            step=number, peak_bytes=0, retained_bytes=0, seconds=taken, loss_tokens=60, image_tokens=40,
            padding_tokens=0, preparations=int(number in compiled),
        )
        for number, taken in enumerate(seconds)
    )  # fmt: skip
    return Work(steps=steps, warmup_steps=warmup_steps)


def test_a_speed_is_the_total_over_the_steps_after_the_warm_up() -> None:
    assert timed(9, 1, 2, 1).useful_tokens_per_second == pytest.approx(75)
    assert timed(9, 8, 7, 6, 1, 1, warmup_steps=4).useful_tokens_per_second == pytest.approx(100)
    assert timed(9, 9, warmup_steps=2).useful_tokens_per_second is None


def test_steps_that_still_compile_after_the_warm_up_belong_to_it_and_later_ones_do_not() -> None:
    assert timed(9, 5, 1, 1, compiled=frozenset({0, 1})).useful_tokens_per_second == pytest.approx(100)
    assert timed(9, 1, 3, 1, compiled=frozenset({0, 2})).useful_tokens_per_second == pytest.approx(60)


def test_a_job_that_compiles_in_every_step_is_slow_and_not_without_a_speed() -> None:
    everywhere = timed(9, 4, 4, 4, compiled=frozenset(range(4)))
    assert everywhere.useful_tokens_per_second == pytest.approx(25)


# -- mock data -----------------------------------------------------------------------------------------------


def test_memory_and_speed_of_a_vision_model_are_not_judged_on_mock_data_and_a_crash_is() -> None:
    mock = recorded("base").evolve(real_data=False, images=0)
    for criterion in (OOM, SPEED):
        judgement = judge(criterion, mock)
        assert judgement.verdict is Verdict.SKIP
        assert "no real image" in judgement.why
    assert judge(CRASH, mock).verdict is Verdict.GOOD


def test_the_memory_of_a_model_that_reads_no_images_needs_none() -> None:
    cells = {(Component.DECODER, Category.PARAMETERS): GIB}
    peak = replace(peak_of(GIB), breakdown=MemoryBreakdown(cells=cells))
    text = recorded("base").evolve(
        real_data=False, images=0, peak=peak, trainable={"decoder": 5, "vision": 0}
    )
    assert judge(OOM, text).verdict is Verdict.GOOD


def test_a_model_that_did_not_fit_while_it_was_built_had_not_seen_its_data() -> None:
    early = refused(CAPACITY - GIB // 2, CAPACITY - GIB // 2).evolve(real_data=False, images=0, steps=())
    assert judge(OOM, early).verdict is Verdict.BAD


# -- the control ---------------------------------------------------------------------------------------------


def with_control(measured: Measurement, pace: float) -> Measurement:
    """``measured`` as a machine of this pace measures it, with its control beside it."""
    good = recorded("base")

    def at_pace(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(replace(step, seconds=step.seconds / pace) for step in steps)

    control = Control(
        state=good.state,
        outcome=Outcome.COMPLETED,
        work=Work(steps=at_pace(good.steps), trainable=good.trainable),
    )
    return measured.evolve(steps=at_pace(measured.steps), control=control)


def test_a_slow_machine_is_told_by_its_control() -> None:
    base = recorded("base")
    rate = base.useful_tokens_per_second
    assert rate is not None
    healthy, slow = with_control(base, 1.0), with_control(base, 0.7)
    criterion = Criterion(kind=CriterionKind.THROUGHPUT, threshold=0.9 * rate)
    assert judge(criterion, slow.evolve(control=None)).verdict is Verdict.BAD
    judgement = judge(criterion, slow, known(healthy, slow))
    assert judgement.verdict is Verdict.GOOD
    assert judgement.value == pytest.approx(rate)
    assert f"{0.7 * rate:.1f} here" in judgement.why


def test_a_control_that_failed_says_that_the_machine_cannot_be_trusted() -> None:
    control = Control(
        state=recorded("base").state, outcome=Outcome.CRASHED, reason="no GPU", work=Work(steps=())
    )
    judgement = judge(SPEED, recorded("base").evolve(control=control))
    assert judgement.verdict is Verdict.RETRY
    assert "no GPU" in judgement.why


def test_a_measurement_with_a_control_is_read_back_as_it_was_written() -> None:
    measured = with_control(recorded("base"), 0.9).evolve(doubtful=True, warmup_steps=4)
    assert Measurement.from_json(json.loads(json.dumps(measured.to_json()))) == measured


@dataclass
class Drift:
    """How fast the machine is at the n-th trial: it slows down, as a throttled one does."""

    trials: int = 0

    def pace(self) -> float:
        self.trials += 1
        return 1.0 - min(0.3, 0.03 * self.trials)


class DriftingMachine(DrawnValues):
    """One machine that slows down while the search runs; with or without controls beside the trials."""

    controlled: bool = True

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        if not hasattr(self, "drift"):
            self.drift = Drift()
        found, pace = super().run(trial, worker), self.drift.pace()

        def slowed(steps: tuple[Step, ...]) -> tuple[Step, ...]:
            return tuple(replace(step, seconds=step.seconds / pace) for step in steps)

        good = Trial(state=self.specification().levels[0].states[0], attempt=1, purpose=Purpose.END)
        control = Control(
            state=good.state,
            outcome=Outcome.COMPLETED,
            work=Work(steps=slowed(super().run(good, worker).steps)),
        )
        return found.evolve(steps=slowed(found.steps), control=control if self.controlled else None)


@pytest.mark.parametrize("controlled", [True, False])
def test_controls_find_the_culprit_on_a_machine_that_slows_down(controlled: bool) -> None:
    values = steps_at(25, (17, -12.0), base=80.0)
    line = DriftingMachine(values, 74, kind=CriterionKind.THROUGHPUT, noise=0.3)
    line.controlled = controlled
    finding, entries = drive(line, line.specification())
    found = finding.kind is FindingKind.FOUND and finding.commits == (hash_of(17),)
    assert found is controlled
    if controlled:
        paced = circumstances(entries[0].trial.state, entries[-1].trial.state, entries, 1).paces
        assert len(paced) == 1
