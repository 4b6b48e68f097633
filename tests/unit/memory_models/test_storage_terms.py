"""Every term of the unfused model against the storages that the probe found alive, one by one.

The storages were listed once, at the end of forward and at the peak, on every rank of some runs of the
grid (data/storages_on_bridge_0_3_1.json says on what).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.probe_records import cases_of, compare, job_of
from memory_models import unfused_backward
from memory_models.breakdown import Category
from memory_models.choices import micro_batch
from memory_models.chunks import chunk_activations
from memory_models.job import TrainingJob
from memory_models.placement import places
from memory_models.runtime import working_parts
from memory_models.tensors import Part
from tests.unit.memory_models.storage_terms import MATCHES, NARROW, mismatches

DATA = Path(__file__).parent / "data"
CASES = {
    case["name"]: case for case in cases_of(json.loads((DATA / "probe_on_bridge_0_3_1.json").read_text()))
}
LISTED = json.loads((DATA / "storages_on_bridge_0_3_1.json").read_text())["cases"]
each_rank = pytest.mark.parametrize(
    ("case", "rank", "storages"),
    [
        pytest.param(CASES[listed["name"]], rank, storages, id=f"{listed['name']}, rank {rank}")
        for listed in LISTED
        for rank, storages in enumerate(listed["ranks"])
    ],
)


def kept_by_forward(job: TrainingJob, stage: int) -> list[Part]:
    """What is alive when the first backward pass of a step begins, the pipeline being full."""
    micro, (place,) = micro_batch(job), places(job.text, job.layout)[stage]
    chunk = chunk_activations(micro, place, final=True)
    in_flight = min(job.layout.pipeline - stage, job.microbatches)
    parts = [tensor.part(Category.ACTIVATIONS, in_flight) for tensor in chunk.kept.tensors]
    parts += [tensor.part(Category.ACTIVATIONS) for tensor in chunk.routing.tensors]
    if place.last:
        loss = (*unfused_backward.loss_kept(micro), unfused_backward.loss_mask(micro))
        parts += [tensor.part(Category.ACTIVATIONS) for tensor in loss]
    neighbours = (stage > 0) + (stage < job.layout.pipeline - 1)
    return [*parts, *working_parts(micro, neighbours, first=place.first)]


def slack(job: TrainingJob) -> float:
    """The mean load of a rank's layers is rounded up to whole rows: under two in a thousand here.

    And no expert gets just its share of rows from a router that draws at random: two in a hundred.
    """
    if job.routing.force_balance:
        return 1 / 50
    return 1 / 512 if job.layout.expert > 1 else 0.0


def is_narrow(job: TrainingJob) -> bool:
    return job.precision.activation_bytes < 4


@each_rank
def test_what_forward_keeps_equals_its_storages_term_by_term(
    case: dict[str, Any], rank: int, storages: dict[str, Any]
) -> None:
    found = compare(case)[rank]
    job = job_of(case, case["ranks"][rank], every_layer=True)
    parts = kept_by_forward(job, found.stage)
    wrong = mismatches(parts, storages["start_of_backward"], slack(job), narrow=is_narrow(job))
    assert list(wrong) == []


@each_rank
def test_what_is_alive_at_the_peak_equals_its_storages_term_by_term(
    case: dict[str, Any], rank: int, storages: dict[str, Any]
) -> None:
    found = compare(case)[rank]
    job = found.answer.job
    wrong = mismatches(found.answer.parts, storages["peak"], slack(job), narrow=is_narrow(job))
    assert list(wrong) == []


def test_no_term_of_the_table_is_left_that_no_run_has() -> None:
    """Else a name that the model gave up, or a case that fell out, would hide behind an empty match."""
    terms = set()
    for listed in LISTED:
        case = CASES[listed["name"]]
        for rank, found in enumerate(compare(case)):
            parts = [*found.answer.parts, *kept_by_forward(job_of(case, case["ranks"][rank]), found.stage)]
            terms |= {(part.component, part.tensor) for part in parts}
    unused = {(match.component, name) for match in (*MATCHES, *NARROW) for name in match.terms} - terms
    assert unused == set()


def test_a_term_that_is_off_a_missing_one_and_a_storage_without_one_are_each_told() -> None:
    case, storages = CASES["no recompute"], LISTED[0]["ranks"][0]["start_of_backward"]
    parts = kept_by_forward(job_of(case, case["ranks"][0]), 0)
    (norm,) = [part for part in parts if part.tensor == "normalised key"]
    others = [part for part in parts if part is not norm]
    (missing,) = mismatches(others, storages)
    assert "normalised key: 0 bytes" in missing
    (unknown,) = mismatches([*parts, Part(**{**vars(norm), "tensor": "another"})], storages)
    assert unknown == "decoder: another stands for no storage"
    row = ["decoder", "activations", "forward", "layers.*.mlp", "sin.default", 1, 4096]
    (unexplained,) = mismatches(parts, [*storages, row])
    assert "layers.*.mlp sin.default" in unexplained
