"""Offsets of workers: found where states were shared, never made of a regression."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.criteria import CriterionKind
from bisection.evidence import Evidence, Observation, StateEvidence
from bisection.ledger import LedgerEntry, Trial
from bisection.measurement import Measurement
from bisection.search import Search
from bisection.value_words import overruled
from bisection.values import Values
from bisection.worker_effect import worker_effect
from memory_models.breakdown import GIB
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of, peak_of
from tests.unit.search.drawn_values import DrawnValues, steps_at


def effect_of(*rows: tuple[float, int, int], guess: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and their variances of rows of value, state and worker."""
    values, groups, workers = zip(*rows, strict=True)
    effect = worker_effect(np.array(values, dtype=float), np.array(groups), np.array(workers), guess)
    return effect.offsets, effect.variances


def test_with_one_worker_nothing_changes() -> None:
    offsets, variances = effect_of((1, 0, 0), (1.2, 0, 0), (9, 5, 0))
    assert not offsets.any()
    assert not variances.any()


def test_a_worker_that_saw_bad_states_only_keeps_the_regression_in_the_states() -> None:
    good = [(-5.0 + 0.1 * k, k, 0) for k in range(6)]
    bad = [(5.0 + 0.1 * k, 10 + k, 1) for k in range(6)]
    offsets, variances = effect_of(*good, *bad)
    assert not offsets.any()
    assert not variances.any()


def test_a_slow_node_is_found_by_the_states_that_it_shares() -> None:
    rows = [(state, state, worker) for state in range(4) for worker in (0, 1, 2)]
    rows = [(value + (6 if worker == 2 else 0), state, worker) for value, state, worker in rows]
    offsets, variances = effect_of(*rows)
    assert offsets[0] == pytest.approx(0, abs=0.3)
    assert offsets[2] == pytest.approx(6, abs=0.7)
    assert np.sqrt(variances[2]) < 1.5


def test_a_single_difference_is_shrunk_and_the_more_states_agree_the_less() -> None:
    found = []
    for states in (1, 2, 4, 8):
        offsets, _ = effect_of(*((6.0 * worker, s, worker) for s in range(states) for worker in (0, 1)))
        found.append(offsets[1] - offsets[0])
    assert found == sorted(found)
    assert found[0] < 3
    assert found[-1] > 5


def test_one_grossly_wrong_value_makes_no_offset() -> None:
    rows = [(float(s % 2), s, worker) for s in range(8) for worker in (0, 1)]
    wrong = [(value + 10.0 * ((state, worker) == (3, 1)), state, worker) for value, state, worker in rows]
    offsets, _ = effect_of(*wrong)
    assert abs(offsets[1] - offsets[0]) < 0.5


def test_where_offsets_are_large_a_worker_without_a_shared_state_is_doubted() -> None:
    shared = [(6.0 * (worker == 1), s, worker) for s in range(4) for worker in (0, 1)]
    offsets, variances = effect_of(*shared, (3.0, 9, 2))
    assert offsets[-1] == pytest.approx(0, abs=1e-9)
    assert variances[-1] > 4 * variances[0]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    rows=st.lists(
        st.tuples(st.floats(-10, 10), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=25
    ),
    levels=st.lists(st.floats(-50, 50), min_size=6, max_size=6),
)
def test_levels_of_states_never_move_an_offset(
    rows: list[tuple[float, int, int]], levels: list[float]
) -> None:
    offsets, variances = effect_of(*rows)
    moved, moved_variances = effect_of(*((value + levels[s], s, w) for value, s, w in rows))
    np.testing.assert_allclose(moved, offsets, atol=1e-6)
    np.testing.assert_allclose(moved_variances, variances, atol=1e-6)
    assert (variances >= -1e-12).all()


def test_values_that_are_missing_take_no_part() -> None:
    offsets, _ = effect_of((np.nan, 0, 0), (6, 0, 1), (6, 1, 1))
    assert not offsets.any()


class SlowNode(DrawnLine):
    """One worker of four measures half of the effect more, and a little."""

    def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
        measurement = super().run(trial, worker)
        assert measurement.peak is not None
        slow = 11 * GIB if worker == "worker-1" else 0
        return measurement.evolve(peak=peak_of(measurement.peak.allocated_bytes + slow))


def test_with_the_offsets_fewer_trials_find_the_culprit_behind_a_slow_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trials() -> int:
        count = 0
        for culprit in range(3, 48, 4):
            line = SlowNode(
                drawing="." * culprit + "X" + "." * (48 - culprit),
                kind=CriterionKind.PEAK_MEMORY,
                good_bytes=70 * GIB,
                noise_bytes=3 * GIB,
                seed=culprit,
            )
            finding, ledger = drive(line, line.specification(parallel=4, workers=4))
            assert finding.commits == (hash_of(culprit),)
            count += len(ledger)
        return count

    with_offsets = trials()
    monkeypatch.setattr("bisection.worker_effect.RATIO_WEIGHTS", np.array([1.0, 0, 0, 0, 0, 0]))
    assert with_offsets < trials()


@pytest.mark.parametrize("kind", [CriterionKind.PEAK_MEMORY, CriterionKind.THROUGHPUT])
def test_a_node_on_which_every_state_fails_confirms_the_parent_all_the_same(kind: CriterionKind) -> None:
    class Half(DrawnValues):
        """One of two workers measures six GiB more, or as much less of a throughput."""

        def run(self, trial: Trial, worker: str = "worker-0") -> Measurement:
            values, self.values = (
                self.values,
                [
                    value + (worker == "worker-1") * (6 if kind is CriterionKind.PEAK_MEMORY else -6)
                    for value in self.values
                ],
            )
            measurement = super().run(trial, worker)
            self.values = values
            return measurement

    rise = 10 if kind is CriterionKind.PEAK_MEMORY else -10
    line = Half(steps_at(41, (17, rise)), 60 + rise / 2, kind=kind, noise=0.1)
    finding, ledger = drive(line, line.specification(parallel=2, workers=2))
    assert finding.commits == (hash_of(17),)
    assert len(ledger) <= 25


def values_of_a_slow_node(kind: CriterionKind) -> tuple[Values, Evidence]:
    """Six good states that two workers measured, one of which measures too much for the limit."""
    worse = -1 if kind is CriterionKind.THROUGHPUT else 1
    observations = tuple(
        Observation(
            group=g, bad=slow, worker=f"worker-{slow:d}", value=100 + worse * (8 * slow - 5), limit=100
        )
        for g in range(6)
        for slow in (False, True)
    )
    states: dict[int, StateEvidence] = {}
    for item in observations:
        states.setdefault(item.group, StateEvidence()).count(item.worker, bad=item.bad)
    evidence = Evidence(states=states, observations=observations, signature="", anchored=True)
    return Values.of(kind, observations), evidence


@pytest.mark.parametrize(
    ("kind", "more"), [(CriterionKind.PEAK_MEMORY, "more"), (CriterionKind.THROUGHPUT, "less")]
)
def test_where_an_offset_is_clear_what_is_left_decides_and_that_is_told(
    kind: CriterionKind, more: str
) -> None:
    values, evidence = values_of_a_slow_node(kind)
    assert not values.bad.any()
    assert values.overruled.tolist() == [False, True] * 6
    counted = evidence.with_sides(values.bad.tolist())
    assert (counted.of(3).passes, counted.of(3).failures) == (2, 0)
    assert counted.of(3).passing_workers == {"worker-0", "worker-1"}
    said = overruled(values, [item.worker for item in evidence.observations])
    assert "worker-1 measures" in said
    assert f"{more} than is usual" in said


def test_a_search_with_one_worker_believes_the_same_whatever_the_worker_is_called() -> None:
    line = DrawnLine(drawing="." * 9 + "X" + "." * 9, kind=CriterionKind.PEAK_MEMORY, noise_bytes=4 * GIB)
    _, ledger = drive(line, line.specification())
    renamed = [
        LedgerEntry(
            sequence=entry.sequence, trial=entry.trial, measurement=entry.measurement.evolve(worker="other")
        )
        for entry in ledger
    ]
    assert (
        Search.replay(line.specification(), renamed).probabilities()
        == Search.replay(line.specification(), ledger).probabilities()
    )
