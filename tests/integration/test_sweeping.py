"""A sweep from its request to its report, on two hosts over one database; measurements are made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Bisections, Kind, Status
from bisection.ledger import Trial
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak, Step
from bisection.sweep_report import Standing, SweepReport
from memory_models.breakdown import Category, Component, MemoryBreakdown
from memory_models.variations import Axis
from tests.integration.two_hosts import Hosts, history
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from workers.advancing import advance
from workers.workspaces import mirror_of

GIB = 2**30
CAPACITY = 60 * GIB
CONFIG = qwen_recipe(train__micro_batch_size=2)
AXES = {"micro_batch": ["1", "2", "4"], "recompute": ["none", "full"]}

Run = Callable[[Mapping[str, Any]], Measurement | None]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, gpus=8, capacity_bytes=CAPACITY, criterion={"kind": "out_of_memory"})
    yield hosts
    hosts.database.close()


def create(hosts: Hosts, **more: Any) -> str:
    profile = hosts.control.catalogue.profile("small")
    request = {"profile": "small", "at": history(hosts.scene)[-1], "axes": AXES, "overrides": {}, **more}
    row, _ = Bisections(hosts.database).create(
        request=request, profile=profile.model_dump(mode="json"), source="test", kind=Kind.SWEEP
    )
    advance(hosts.control, row.id)
    return row.id


def completed(peak_bytes: int, rate: float, *, image_tokens: int = 200, trainable: int = 1000) -> Measurement:
    """At this speed; seconds of a step follow from its 1,000 useful tokens."""
    breakdown = MemoryBreakdown(cells={(Component.EXPERTS, Category.ACTIVATIONS): peak_bytes})
    steps = tuple(
        Step(
            step=n, peak_bytes=peak_bytes, retained_bytes=9, seconds=(800 + image_tokens) / rate,
            loss_tokens=800, image_tokens=image_tokens, padding_tokens=0, patches=4 * image_tokens,
        )
        for n in range(3)
    )  # fmt: skip
    return Measurement(
        outcome=Outcome.COMPLETED,
        state=STATE,
        device="cuda",
        hardware="NVIDIA H100",
        seconds=9.0,
        steps=steps,
        images=3,
        real_data=True,
        trainable={"experts": trainable},
        peak=Peak(
            rank=0, step=1, phase="backward", instant="decoder", allocated_bytes=peak_bytes,
            reserved_bytes=peak_bytes + GIB, breakdown=breakdown,
        ),
    )  # fmt: skip


#: Replaced by the trial's own where it is written.
STATE = Trial.from_json({"state": {"commit": "a" * 40}, "attempt": 1, "purpose": "point"}).state


def out_of_memory() -> Measurement:
    return Measurement(
        outcome=Outcome.OUT_OF_MEMORY, state=STATE, device="cuda", hardware="NVIDIA H100",
        oom=OutOfMemory(component="experts", phase="forward", requested_bytes=12 * GIB,
                        allocated_bytes=50 * GIB, reserved_bytes=50 * GIB),
    )  # fmt: skip


def finish(hosts: Hosts, sweep_id: str, run: Run, *, config: Any = CONFIG) -> SweepReport:
    for _ in range(60):
        advance(hosts.control, sweep_id)
        advance(hosts.worker, sweep_id)  # as the reconciler does, on whatever host
        row = hosts.row(sweep_id)
        if row.status is Status.ENDED:
            assert row.report is not None
            return SweepReport.from_json(row.report)
        claim = hosts.worker.claims.claim("local", "w")
        assert claim is not None, "nothing runs and nothing is wanted"
        hosts.ran.append(claim.trial)
        result = (run(claim.trial.overrides) or completed(40 * GIB, 100.0)).evolve(state=claim.trial.state)
        kept = {"config.json": json.dumps(config).encode()} if config is not None else {}
        assert hosts.worker.claims.complete(claim, result, kept)
    raise AssertionError("the sweep does not come to an end")


def by_words(report: SweepReport) -> dict[tuple[str, ...], Any]:
    return {tuple(row.settings.values()): row for row in report.points}


def test_the_base_runs_first_and_legal_points_after_it_at_one_global_batch(hosts: Hosts) -> None:
    rates = {"1": 90.0, "4": 150.0}

    def run(overrides: Mapping[str, Any]) -> Measurement:
        if overrides.get("model.recompute_granularity") == "full":
            return completed(20 * GIB, 80.0)
        return completed(40 * GIB, rates.get(str(overrides.get("train.micro_batch_size")), 120.0))

    report = finish(hosts, create(hosts), run)
    assert dict(hosts.ran[0].overrides) == {}
    assert {trial.overrides.get("train.global_batch_size") for trial in hosts.ran[1:]} == {64}
    assert len({json.dumps(dict(trial.overrides), sort_keys=True) for trial in hosts.ran}) == 6
    rows = by_words(report)
    assert rows["2", "none"].is_base
    assert rows["2", "none"].headroom_bytes == CAPACITY - 41 * GIB
    assert report.best is not None
    assert tuple(report.points[report.best].settings.values()) == ("4", "none")
    assert "150.0 useful tokens a second, 25 % more than the job as it is" in report.best_why
    assert sorted(row.place or 0 for row in report.points) == [1, 2, 3, 4, 5, 6]
    for row in report.points:
        assert row.off_bytes == row.estimate.allocated_bytes - (row.peak_bytes or 0)


def test_points_that_fit_by_their_estimates_come_before_those_that_do_not(hosts: Hosts) -> None:
    report = finish(hosts, create(hosts), lambda _: None)
    turns = [row.fits for row in report.points if not row.is_base]
    assert turns == sorted(turns, key=["yes", "maybe", "no"].index)
    sizes = [row.estimate.device_bytes for row in report.points if row.fits == "yes" and not row.is_base]
    assert sizes == sorted(sizes, reverse=True)


def test_narrow_graph_scopes_come_before_wide_ones(hosts: Hosts) -> None:
    words = ["moe_router+moe_preprocess", "attn+moe_router+moe_preprocess", "attn", "none"]
    report = finish(hosts, create(hosts, axes={"graph_scope": words}), lambda _: None)
    assert [row.settings[Axis.GRAPH_SCOPE] for row in report.points] == [words[n] for n in (3, 2, 0, 1)]


def test_running_out_of_memory_is_a_result_and_is_told(hosts: Hosts) -> None:
    report = finish(
        hosts,
        create(hosts),
        lambda overrides: out_of_memory() if overrides.get("train.micro_batch_size") == 4 else None,
    )
    row = by_words(report)["4", "none"]
    assert row.standing is Standing.OUT_OF_MEMORY
    assert row.least_bytes == 62 * GIB
    assert "the allocator refused 12.00 GiB in experts, forward" in row.why
    assert report.best is not None
    assert report.points[report.best].standing is Standing.MEASURED


def test_what_upstreams_checks_refuse_is_told_and_not_run(hosts: Hosts) -> None:
    axes = {"micro_batch": ["2", "3"], "expert_parallel": ["8", "16"]}
    report = finish(hosts, create(hosts, axes=axes), lambda _: None)
    rows = by_words(report)
    assert rows["3", "8"].standing is Standing.ILLEGAL
    assert "does not divide" in rows["3", "8"].why
    assert "8 GPUs do not divide" in rows["2", "16"].why
    assert len(hosts.ran) == 1  # the base alone is legal


def test_what_the_code_refuses_is_told_in_its_own_words(hosts: Hosts) -> None:
    words = "AssertionError: attn is not supported as a scope"

    def run(overrides: Mapping[str, Any]) -> Measurement | None:
        if "model.cuda_graph_modules" in overrides:
            return Measurement(outcome=Outcome.CRASHED, state=STATE, reason=words, signature="AssertionError")
        return None

    report = finish(hosts, create(hosts, axes={"graph_scope": ["none", "attn"]}), run)
    row = by_words(report)["attn",]
    assert (row.standing, row.why) == (Standing.REFUSED, words)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"image_tokens": 20}, "a step holds 20 image tokens, one of the job as it is 200"),
        ({"trainable": 500}, "500 parameters of experts are trained, where the job as it is trains 1,000"),
    ],
)
def test_unequal_work_and_unequal_trainable_parts_are_marked_and_not_ranked(
    hosts: Hosts, other: dict[str, int], words: str
) -> None:
    report = finish(
        hosts,
        create(hosts, axes={"micro_batch": ["1", "2"]}),
        lambda changed: completed(30 * GIB, 900.0, **other) if changed else completed(40 * GIB, 100.0),
    )
    row = by_words(report)["1",]
    assert words in row.incomparable
    assert row.place is None
    assert report.best is not None
    assert report.points[report.best].is_base


def test_padding_that_another_batching_makes_is_no_other_work(hosts: Hosts) -> None:
    def run(changed: Mapping[str, Any]) -> Measurement:
        whole = completed(40 * GIB, 100.0)
        steps = tuple(replace(step, padding_tokens=500 if changed else 50) for step in whole.steps)
        return whole.evolve(steps=steps)

    report = finish(hosts, create(hosts, axes={"micro_batch": ["1", "2"]}), run)
    assert [row.incomparable for row in report.points] == ["", ""]


def test_speeds_that_their_steps_do_not_tell_apart_are_said_to_be_close(hosts: Hosts) -> None:
    report = finish(
        hosts,
        create(hosts, axes={"micro_batch": ["1", "2"]}),
        lambda changed: completed(20 * GIB, 100.0) if changed else completed(40 * GIB, 100.0),
    )
    assert "on speed alone they are not told apart" in report.best_why
    assert "needs 20.00 GiB less" in report.best_why


def test_a_lost_point_is_run_once_more_and_then_given_up(hosts: Hosts) -> None:
    def run(overrides: Mapping[str, Any]) -> Measurement | None:
        return (
            Measurement(outcome=Outcome.LOST, state=STATE, reason="the node went away") if overrides else None
        )

    report = finish(hosts, create(hosts, axes={"micro_batch": ["1", "2"]}), run)
    row = by_words(report)["1",]
    assert (row.standing, row.why) == (Standing.LOST, "the node went away")
    assert [trial.attempt for trial in hosts.ran if trial.overrides] == [1, 2]


def test_a_base_without_a_configuration_ends_it_and_says_why(hosts: Hosts) -> None:
    crashed = Measurement(
        outcome=Outcome.CRASHED, state=STATE, reason="ImportError: no module", signature="x"
    )
    report = finish(hosts, create(hosts), lambda _: crashed, config=None)
    assert report.points == ()
    assert report.failure.endswith("nothing can be changed in it: ImportError: no module.")
    assert report.problem == "crashed"


def test_a_job_of_another_script_cannot_be_swept(hosts: Hosts) -> None:
    report = finish(hosts, create(hosts), lambda _: None, config={"lr": 1})
    assert "no configuration of Megatron Bridge" in report.failure


def test_an_unknown_ref_is_refused_with_its_problem(hosts: Hosts) -> None:
    sweep_id = create(hosts, at="no-such-branch")
    report = SweepReport.from_json(hosts.row(sweep_id).report or {})
    assert report.problem == "unknown-ref"
    assert "no-such-branch" in report.failure


def test_a_cancelled_sweep_keeps_what_was_measured(hosts: Hosts) -> None:
    sweep_id = create(hosts)

    def run(overrides: Mapping[str, Any]) -> None:
        if overrides:
            Bisections(hosts.database).request_cancel(sweep_id)

    report = finish(hosts, sweep_id, run)
    standings = [row.standing for row in report.points]
    assert standings.count(Standing.MEASURED) in (1, 2)
    assert Standing.NOT_RUN in standings
    assert report.failure == "It was cancelled."
    assert report.best is not None


def test_a_sweep_takes_no_more_gpu_hours_than_its_profile_allows(tmp_path: Path) -> None:
    hosts = Hosts(
        tmp_path / "limited", gpus=8, capacity_bytes=CAPACITY, limits={"gpu_hours_without_approval": 0.03}
    )
    report = finish(hosts, create(hosts), lambda _: None)
    assert len(hosts.ran) == 2  # nine seconds each on eight GPUs
    assert report.problem == "budget-spent"
    assert "allows 0.03 without approval" in report.failure
    assert report.best is not None
    hosts.database.close()


def test_a_sweep_is_no_bisection_and_shares_its_commits_mirror(hosts: Hosts) -> None:
    sweep_id = create(hosts)
    row = hosts.row(sweep_id)
    assert row.kind is Kind.SWEEP
    assert row.spec is not None
    mirror = mirror_of(hosts.control.root, hosts.control.catalogue.repository("training"))
    assert mirror.has(row.spec["state"]["commit"])
    assert Axis.MICRO_BATCH.value in row.spec["axes"]
