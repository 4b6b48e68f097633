"""Speeds are compared between equal work only: what counts as equal, what is told where it is not."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bisection.circumstances import circumstances
from bisection.criteria import OTHER_WORK_SIGNATURE, Criterion, CriterionKind, Judgement, Verdict, judge
from bisection.finding import FindingKind
from bisection.ledger import LedgerEntry, Purpose, Trial
from bisection.measurement import Measurement, Step, Work
from bisection.specification import Budget
from bisection.workload import differences
from tests.unit.search.drawn_lines import drive, hash_of
from tests.unit.search.drawn_values import TOKENS, DrawnValues, steps_at

RECORDED = Path(__file__).parents[1] / "report" / "recorded"


def recorded(name: str) -> Measurement:
    return Measurement.from_json(json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))


def speed(measured: Measurement) -> Judgement:
    """The verdict on a speed, whatever it is, where the good end is the recorded base."""
    base = recorded("base")
    trial = Trial(state=base.state, attempt=1, purpose=Purpose.END)
    ledger = [LedgerEntry(sequence=0, trial=trial, measurement=base)]
    beside = circumstances(base.state, base.state, ledger, 1)
    return judge(Criterion(kind=CriterionKind.THROUGHPUT, threshold=1e-9), measured, beside)


@pytest.mark.parametrize("change", ["base", "experts-not-recomputed", "attention-not-recomputed"])
def test_real_runs_of_equal_work_are_compared(change: str) -> None:
    assert speed(recorded(change)).verdict is Verdict.GOOD


def test_a_real_run_on_more_pixels_is_refused_and_both_figures_are_named() -> None:
    judgement = speed(recorded("more-pixels"))
    assert (judgement.verdict, judgement.signature) == (Verdict.SKIP, OTHER_WORK_SIGNATURE)
    before, after = (recorded(name).steps[0].patches for name in ("base", "more-pixels"))
    assert f"a step holds {after:,} image patches, one of the good end {before:,}" in judgement.why
    assert "by overrides" in judgement.why


def test_a_real_run_that_trains_more_is_refused_and_both_figures_are_named() -> None:
    judgement = speed(recorded("wide-projector"))
    before, after = (recorded(name).trainable["projector"] for name in ("base", "wide-projector"))
    assert judgement.verdict is Verdict.SKIP
    assert (
        f"{after:,} parameters of projector are trained, where the good end trains {before:,}"
        in judgement.why
    )


def test_a_frozen_tower_is_no_gain_of_speed() -> None:
    base = recorded("base")
    frozen = base.evolve(trainable={**base.trainable, "vision": 0})
    assert "0 parameters of vision are trained" in speed(frozen).why
    assert speed(frozen).verdict is Verdict.SKIP


def samples(draw: random.Random, count: int) -> list[tuple[int, int]]:
    """Loss and image tokens of as many samples as a data set of photographs and captions has."""
    return [(draw.randint(10, 60), 4 * draw.randint(8, 80)) for _ in range(count)]


def steps_of(rows: list[tuple[int, int]], batch: int, *, packed: bool = False) -> tuple[Step, ...]:
    """Each step takes so many samples; packed ones share a row, and little is padded."""
    steps = []
    for number in range(len(rows) // batch):
        taken = rows[number * batch : (number + 1) * batch]
        loss, image = (sum(row[k] for row in taken) for k in (0, 1))
        tokens = loss + image if packed else batch * 400
        steps.append(
            Step(
                step=number, peak_bytes=0, retained_bytes=0, seconds=1.0, loss_tokens=loss,
                image_tokens=image, padding_tokens=tokens - loss - image, tokens=tokens, sequences=batch,
                patches=4 * image,
            )
        )  # fmt: skip
    return tuple(steps)


def test_the_same_samples_in_another_order_are_equal_work() -> None:
    draw, refused_runs = random.Random(5), 0
    for _ in range(300):
        rows = samples(draw, 80)
        other = draw.sample(rows, len(rows))
        refused_runs += bool(differences(Work(steps=steps_of(rows, 8)), Work(steps=steps_of(other, 8))))
    assert refused_runs <= 3


def test_packing_is_other_work_however_the_samples_are_ordered() -> None:
    draw = random.Random(6)
    for _ in range(50):
        rows = samples(draw, 64)
        packed = Work(steps=steps_of(draw.sample(rows, len(rows)), 8, packed=True))
        told = " ".join(differences(Work(steps=steps_of(rows, 8)), packed))
        assert "padding tokens" in told or "tokens in all" in told


def test_an_image_size_that_grew_is_other_work_in_every_order_that_is_kept() -> None:
    """The steps differ among themselves by more than by the change; each of them grew by it."""
    draw = random.Random(7)
    for _ in range(50):
        rows = samples(draw, 24)
        larger = [(loss, image * 5 // 4) for loss, image in rows]
        told = differences(Work(steps=steps_of(rows, 8)), Work(steps=steps_of(larger, 8)))
        assert any("image tokens" in words for words in told)


def test_a_difference_too_small_to_pass_for_a_slow_down_is_none() -> None:
    steps = steps_of([(40, 200)] * 24, 8)
    more = tuple(replace(step, loss_tokens=step.loss_tokens + 1) for step in steps)
    assert differences(Work(steps=steps), Work(steps=more)) == []


class OtherData(DrawnValues):
    """From a commit on, the collator hands the model half of the images."""

    halved_from: int = 0
    whole_again_at: int = 10_000

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        found = super().run(trial, worker)
        if not self.halved_from <= int(trial.state.commit, 16) < self.whole_again_at:
            return found
        steps = tuple(
            replace(step, loss_tokens=step.loss_tokens // 2, seconds=step.seconds * 0.9)
            for step in found.steps
        )
        return found.evolve(steps=steps)


def test_a_commit_that_changes_the_work_is_not_called_a_slow_down() -> None:
    line = OtherData([80.0] * 13, 60, kind=CriterionKind.THROUGHPUT, noise=0.2)
    line.halved_from = 7
    finding, entries = drive(line, line.specification())
    assert (finding.kind, finding.problem) == (FindingKind.NONE, "other-work")
    half, whole = f"{50 * TOKENS:,.0f}", f"{100 * TOKENS:,.0f}"
    assert f"a step holds {half} loss tokens, one of the good end {whole}" in finding.why
    assert "not of its speed" in finding.why
    (changed,) = finding.others
    assert (changed.commits, changed.parent) == ((hash_of(7),), hash_of(6))
    assert changed.confirmed
    assert finding.why.endswith("a step holds what it does at the good end.")
    assert len(entries) < 14


def test_commits_of_other_work_on_the_way_are_passed_over_and_told() -> None:
    line = OtherData(steps_at(25, (17, -30.0), base=80.0), 66, kind=CriterionKind.THROUGHPUT, noise=0.3)
    line.halved_from, line.whole_again_at = 10, 13
    finding, entries = drive(line, line.specification())
    assert (finding.kind, finding.commits) == (FindingKind.FOUND, (hash_of(17),))
    assert any(10 <= int(entry.trial.state.commit, 16) < 13 for entry in entries)
    assert "Other work than the good end's" in finding.why


def test_where_the_work_changed_is_told_as_far_as_the_budget_goes() -> None:
    line = OtherData([80.0] * 40, 60, kind=CriterionKind.THROUGHPUT, noise=0.2)
    line.halved_from = 23
    finding, entries = drive(line, line.specification(budget=Budget(trials=6)))
    assert (finding.kind, finding.problem, len(entries)) == (FindingKind.NONE, "other-work", 6)
    (changed,) = finding.others
    assert not changed.confirmed
    assert hash_of(23) in changed.commits
    assert 1 < len(changed.commits) < 39
