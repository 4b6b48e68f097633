"""Remedies proven on request: tried at the culprit through the same trials, in the bisection or after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.proofs import Proofs
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak
from bisection.rendering.html import render_html
from bisection.rendering.markdown import render_markdown
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport
from memory_models.breakdown import Category, Component, MemoryBreakdown
from tests.integration.two_hosts import Hosts, history, model
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from workers.advancing import advance
from workers.verifying import write_revert

GIB = 2**30
CAPACITY = 60 * GIB
CONFIG = qwen_recipe()

Peaks = Callable[[Mapping[str, Any]], int]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, gpus=8, capacity_bytes=CAPACITY, criterion={"kind": "out_of_memory"})
    yield hosts
    hosts.database.close()


def measured(trial: Trial, peak_bytes: int, number: int) -> Measurement:
    """What a run with this peak would tell; above the capacity the allocator refuses."""
    fits = peak_bytes <= CAPACITY
    breakdown = MemoryBreakdown(cells={(Component.EXPERTS, Category.ACTIVATIONS): min(peak_bytes, CAPACITY)})
    return Measurement(
        outcome=Outcome.COMPLETED if fits else Outcome.OUT_OF_MEMORY,
        state=trial.state,
        worker=f"w{number}",
        device="cuda",
        seconds=1.0,
        peak=Peak(
            rank=0, step=1, phase="backward", instant="decoder", allocated_bytes=min(peak_bytes, CAPACITY),
            reserved_bytes=min(peak_bytes, CAPACITY), breakdown=breakdown,
        ) if fits else None,
        oom=None if fits else OutOfMemory(
            component="experts", phase="forward", requested_bytes=peak_bytes - 50 * GIB,
            allocated_bytes=50 * GIB, reserved_bytes=50 * GIB,
        ),
    )  # fmt: skip


def step(hosts: Hosts, bisection_id: str, peaks: Peaks) -> bool:
    claim = hosts.worker.claims.claim("local", "w")
    if claim is None:
        return False
    hosts.ran.append(claim.trial)
    if claim.trial.purpose is Purpose.REVERT:
        write_revert(hosts.worker, hosts.row(bisection_id), claim.trial)
    bad = hosts.holds_the_fault(claim.trial)
    result = measured(claim.trial, peaks(claim.trial.overrides) if bad else 40 * GIB, len(hosts.ran))
    assert hosts.worker.claims.complete(claim, result, {"config.json": json.dumps(CONFIG).encode()})
    return True


def finish(hosts: Hosts, bisection_id: str, peaks: Peaks) -> CulpritReport:
    for _ in range(100):
        advance(hosts.control, bisection_id)
        row = hosts.row(bisection_id)
        if row.status is Status.ENDED:
            assert row.report is not None
            return CulpritReport.from_json(row.report)
        step(hosts, bisection_id, peaks)
    raise AssertionError("the bisection does not come to an end")


def create(hosts: Hosts, **more: Any) -> str:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    criterion = {"kind": "out_of_memory", "capacity_bytes": CAPACITY}
    return hosts.create(hashes[0], hashes[-1], criterion=criterion, **more)


def half_works(overrides: Mapping[str, Any]) -> int:
    """Recomputing experts helps, whatever else is changed does not."""
    return 45 * GIB if "moe" in overrides.get("model.recompute_modules", ()) else 70 * GIB


def test_the_top_remedies_are_tried_at_the_culprit_and_told_in_every_format(hosts: Hosts) -> None:
    report = finish(hosts, create(hosts, prove=8), half_works)
    assert report.finding.revert is not None
    assert report.finding.revert.result == "mends"
    culprit = report.finding.commits[0]
    proofs = [trial for trial in hosts.ran if trial.purpose is Purpose.PROOF]
    tried = [remedy for remedy in report.remedies if remedy.proven is not None]
    assert [dict(trial.overrides) for trial in proofs] == [dict(remedy.change) for remedy in tried]
    assert {trial.state.commit for trial in proofs} == {culprit}
    assert {remedy.proven for remedy in tried} == {True, False}
    for remedy in tried:
        assert remedy.proven == ("moe" in remedy.change.get("model.recompute_modules", ()))
        if remedy.proven:
            assert remedy.measured_peak_bytes == 45 * GIB
            assert remedy.estimate_off_bytes == remedy.estimate.peak_bytes - 45 * GIB
            assert "the estimate was" in remedy.proof
        else:
            assert "it still ran out of memory: the allocator refused 20.00 GiB in experts" in remedy.proof
    for shown in (render_text(report), render_markdown(report), render_html(report)):
        flat = " ".join(shown.split())
        assert "it still ran out of memory" in flat
        assert (
            "Proven: the peak of 45.00 GiB is within 60.00 GiB" in flat
            or "proven: the peak of 45.00 GiB" in flat
        )


def test_an_ended_bisection_is_opened_again_and_its_answer_and_its_estimates_stand(hosts: Hosts) -> None:
    bisection_id = create(hosts)
    before = finish(hosts, bisection_id, half_works)
    assert all(remedy.proven is None for remedy in before.remedies)
    proofs = Proofs(hosts.control.bisections)

    # Cancelled before anything was tried: the report is as it was.
    assert proofs.ask(bisection_id, 2)
    advance(hosts.control, bisection_id)
    assert hosts.control.bisections.request_cancel(bisection_id)
    assert finish(hosts, bisection_id, half_works).finding == before.finding
    assert not [trial for trial in hosts.ran if trial.purpose is Purpose.PROOF]

    assert proofs.ask(bisection_id, 2)
    after = finish(hosts, bisection_id, half_works)
    assert sum(trial.purpose is Purpose.PROOF for trial in hosts.ran) == 2
    assert (after.finding, after.headline) == (before.finding, before.headline)
    assert [r.estimate for r in after.remedies] == [r.estimate for r in before.remedies]
    assert [r.proven is not None for r in after.remedies[:3]] == [True, True, False]

    # Of three, two were tried already. The third cannot be spelt at this commit: that is no failure of it.
    assert proofs.ask(bisection_id, 3)
    for _ in range(3):  # as the reconciler does, on two hosts
        advance(hosts.control, bisection_id)
        advance(hosts.worker, bisection_id)
    claim = hosts.worker.claims.claim("local", "w")
    assert claim is not None
    words = "this commit does not know model.recompute_modules"
    refused = Measurement(outcome=Outcome.UNBUILDABLE, state=claim.trial.state, reason=words)
    assert hosts.worker.claims.complete(claim, refused, {})
    report = finish(hosts, bisection_id, half_works)
    assert sum(trial.purpose is Purpose.PROOF for trial in hosts.ran) == 2
    third = report.remedies[2]
    assert third.proven is None
    assert f"could not be judged: {words}" in third.proof
    assert "not proven: with it the job could not be judged" in " ".join(render_text(report).split())
