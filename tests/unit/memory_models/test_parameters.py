"""Parameter counts against published ones and against the real code's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memory_models.breakdown import Component
from memory_models.job import Batch, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.parameters import model_parameters, stage_weights
from memory_models.presets import QWEN3_VL_30B_A3B, QWEN3_VL_235B_A22B
from memory_models.reading import read_bridge_config
from tests.unit.memory_models.jobs import qwen_30b

TINY = Path(__file__).parent / "data" / "qwen3_vl_moe_tiny_bridge_0_3_1.json"


def test_qwen3_vl_30b_has_its_published_parameters() -> None:
    counts = model_parameters(qwen_30b())
    text = sum(counts[part] for part in (Component.DECODER, Component.EXPERTS, Component.EMBEDDING_AND_LOSS))
    assert text == 30_532_122_624
    assert counts[Component.VISION] == 415_891_440
    assert counts[Component.PROJECTOR] == 122_739_968


def test_qwen3_vl_235b_has_227_billion_parameters_in_experts() -> None:
    text, vision = QWEN3_VL_235B_A22B
    job = TrainingJob(
        text=text,
        vision=vision,
        layout=ParallelLayout(world_size=8),
        batch=Batch(micro=1, total=8, sequence_length=4096),
    )
    assert round(model_parameters(job)[Component.EXPERTS] / 1e9, 1) == 227.1


def test_the_tiny_model_has_the_parameters_that_bridge_0_3_1_builds() -> None:
    job = read_bridge_config(json.loads(TINY.read_text()), world_size=1).job
    assert sum(model_parameters(job).values()) == 625_040


def test_the_hugging_face_tower_is_whole_on_every_tensor_parallel_rank() -> None:
    job = qwen_30b(tensor=2)
    assert job.vision is not None
    other = replace(job, vision=replace(job.vision, native=False))

    def tower(some: TrainingJob) -> int:
        return sum(part.elements for part in stage_weights(some, 0) if part.component is Component.VISION)

    assert tower(other) == model_parameters(other)[Component.VISION]
    assert tower(job) < 0.51 * tower(other)


def test_expert_parallelism_divides_experts_and_nothing_else() -> None:
    def by_component(job: TrainingJob) -> dict[Component, int]:
        sums = dict.fromkeys(Component, 0)
        for part in stage_weights(job, 0):
            sums[part.component] += part.elements
        return sums

    one, eight = by_component(qwen_30b(expert=1)), by_component(qwen_30b(expert=8))
    router = 48 * 2048 * 128
    assert (one[Component.EXPERTS] - router) == 8 * (eight[Component.EXPERTS] - router)
    assert one[Component.DECODER] == eight[Component.DECODER]


def test_tied_embeddings_are_copied_to_the_last_stage_but_counted_once() -> None:
    job = qwen_30b(pipeline=2)
    tied = replace(job, text=replace(job.text, tied_embeddings=True))
    rows = 151_936 * 2048
    whole = model_parameters(job)[Component.EMBEDDING_AND_LOSS]
    assert model_parameters(tied)[Component.EMBEDDING_AND_LOSS] == whole - rows
    last = [part for part in stage_weights(tied, 1) if part.component is Component.EMBEDDING_AND_LOSS]
    assert [part.elements for part in last] == [rows]


@pytest.mark.parametrize("expert_tensor", [5, 7])
def test_a_size_that_does_not_divide_is_refused(expert_tensor: int) -> None:
    job = qwen_30b(world_size=8 * expert_tensor, expert_tensor=expert_tensor)
    with pytest.raises(ValueError, match=f"over {expert_tensor} ranks"):
        stage_weights(job, 0)


def test_text_shapes_of_the_presets_differ_in_depth() -> None:
    assert len(QWEN3_VL_30B_A3B[0].layers) == 48
    assert len(QWEN3_VL_235B_A22B[0].layers) == 94
