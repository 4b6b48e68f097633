"""Remedies: each saving is a new estimate, and nothing is offered that does not exist."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings

from memory_models.estimation import estimate
from memory_models.job import Frozen, Granularity, Recompute, Sharding, TrainingJob
from memory_models.remedies import Remedy, find_remedies
from tests.unit.memory_models.jobs import qwen_30b, small_jobs

GIB = 2**30


def titled(remedies: tuple[Remedy, ...], words: str) -> list[Remedy]:
    return [remedy for remedy in remedies if words in remedy.title]


def test_a_fitting_remedy_comes_before_one_that_does_not_fit() -> None:
    remedies = find_remedies(qwen_30b(), 70 * GIB)
    assert remedies[0].fits
    order = [(not remedy.legal, not remedy.fits) for remedy in remedies]
    assert order == sorted(order)


def test_recompute_of_the_experts_saves_what_the_changed_job_saves() -> None:
    job = qwen_30b()
    (remedy,) = [
        r for r in find_remedies(job, 80 * GIB) if r.change.get("model.recompute_modules") == ["moe"]
    ]
    changed = replace(job, recompute=Recompute(granularity=Granularity.SELECTIVE, modules=frozenset({"moe"})))
    assert remedy.estimate_bytes == estimate(changed).worst.device_bytes
    assert remedy.saving_bytes == estimate(job).worst.device_bytes - remedy.estimate_bytes > 10 * GIB
    assert remedy.slowdown > 0


def test_expert_tensor_parallelism_is_offered_only_where_expert_parallelism_does_not_fit() -> None:
    job = qwen_30b(world_size=256)
    assert not titled(find_remedies(job, 80 * GIB), "Split each expert")
    assert titled(find_remedies(job, 30 * GIB), "Split each expert")


def test_full_recompute_with_images_is_refused_on_the_hugging_face_tower() -> None:
    job = qwen_30b()
    assert job.vision is not None
    (remedy,) = titled(
        find_remedies(replace(job, vision=replace(job.vision, native=False)), 80 * GIB), "every layer"
    )
    assert not remedy.legal
    assert "deepstack" in remedy.why_not
    assert not remedy.fits


def test_exchange_overlap_forbids_recompute_of_experts() -> None:
    job = qwen_30b()
    overlapped = replace(job, routing=replace(job.routing, exchange_overlap=True))
    refused = [remedy for remedy in find_remedies(overlapped, 80 * GIB) if not remedy.legal]
    assert any(remedy.change.get("model.recompute_modules") == ["moe"] for remedy in refused)


def test_what_leaves_training_as_it_is_comes_first() -> None:
    fitting = [
        remedy.alters_training for remedy in find_remedies(qwen_30b(micro=2), 110 * GIB) if remedy.fits
    ]
    assert fitting == sorted(fitting)
    assert set(fitting) == {False, True}


def test_where_no_single_change_suffices_several_are_joined() -> None:
    job = qwen_30b()
    capacity = 45 * GIB
    joined = find_remedies(job, capacity)[0]
    assert ";" in joined.title
    assert joined.fits
    assert len(joined.change) > 1
    assert not any(
        remedy.fits
        for remedy in find_remedies(job, capacity)
        if remedy is not joined and ";" not in remedy.title and not remedy.alters_training
    )


def test_what_is_done_already_is_not_offered_again() -> None:
    job = replace(
        qwen_30b(micro=1),
        frozen=Frozen(vision=True),
        sharding=Sharding.EVERYTHING,
        expandable_segments=True,
        recompute=Recompute(granularity=Granularity.FULL),
    )
    titles = {remedy.title for remedy in find_remedies(job, 80 * GIB) if remedy.legal}
    assert not any(word in title for title in titles for word in ("Freeze", "FSDP", "allocator", "Recompute"))


def test_freezing_the_tower_speeds_the_step_up() -> None:
    (remedy,) = titled(find_remedies(qwen_30b(), 80 * GIB), "Freeze")
    assert remedy.slowdown < 0
    assert remedy.change == {"model.freeze_vision_model": True}


def test_remedies_are_json() -> None:
    rows = json.loads(json.dumps([remedy.to_json() for remedy in find_remedies(qwen_30b(), 80 * GIB)]))
    assert all(row["source"] for row in rows)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(small_jobs())
def test_every_saving_is_before_minus_after(job: TrainingJob) -> None:
    before = estimate(job).worst.device_bytes
    for remedy in find_remedies(job, 2 * GIB):
        assert remedy.saving_bytes == before - remedy.estimate_bytes
        assert remedy.legal == (remedy.why_not == "")
        assert not (remedy.fits and not remedy.legal)
        assert not (remedy.fits and remedy.estimate_bytes > 2 * GIB)
