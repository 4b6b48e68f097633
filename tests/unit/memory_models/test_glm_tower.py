"""GLM-4.5V's tower against the module that transformers builds: its weights, and the tensors that it saves.

The figures were recorded once (data/glm_tower_transformers_4_57_6.json says on what).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memory_models.breakdown import Category, Component
from memory_models.configurations import read_configuration
from memory_models.estimation import estimate
from memory_models.glm_tower import glm_projector_tensors, glm_tower_tensors
from memory_models.job import Frozen, Granularity, Recompute, TrainingJob
from memory_models.parameters import model_parameters, stage_weights, vision_weights
from memory_models.reading_shapes import tower_shape
from memory_models.remedies import find_remedies
from memory_models.shapes import ImageLoad
from tests.unit.memory_models.jobs import qwen_30b

RECORDED = json.loads((Path(__file__).parent / "data" / "glm_tower_transformers_4_57_6.json").read_text())
GIB = 2**30


def glm_45v(**keys: Any) -> dict[str, Any]:
    """GLM-4.5V's config.json."""
    text = RECORDED["text"]["config"] | {"num_hidden_layers": 46, "vocab_size": 151_552, "head_dim": 128}
    return {
        "model_type": "glm4v_moe",
        "text_config": text,
        "vision_config": RECORDED["default"]["config"],
    } | keys


def job_of(**overrides: Any) -> TrainingJob:
    layout = {
        "model.seq_length": 8192,
        "model.pipeline_model_parallel_size": 2,
        "model.expert_model_parallel_size": 16,
    }
    reading = read_configuration(
        glm_45v(), world_size=128, images=ImageLoad(patches=4096), overrides=layout | overrides
    )
    assert any("Hugging Face module" in note for note in reading.notes)
    return reading.job


def test_the_tower_has_the_weights_that_the_real_module_builds() -> None:
    shape = tower_shape(RECORDED["default"]["config"], native=True)
    counts = dict.fromkeys(Component, 0)
    for weights in vision_weights(shape, Frozen(), tensor=4):
        assert weights.shards == 1
        counts[weights.component] += weights.elements
    assert counts[Component.PROJECTOR] == RECORDED["default"]["merger"]
    assert counts[Component.VISION] + counts[Component.PROJECTOR] == RECORDED["default"]["parameters"]


@pytest.mark.parametrize("case", RECORDED["saved"])
def test_it_keeps_what_the_real_module_saves(case: dict[str, Any]) -> None:
    config = RECORDED["default"]["config"] | {name: case[name] for name in case if name in
              ("depth", "hidden_size", "out_hidden_size", "intermediate_size", "num_heads")}  # fmt: skip
    shape = tower_shape(config, native=True)
    job = replace(qwen_30b(), batch=replace(qwen_30b().batch, images=ImageLoad(patches=case["patches"])))
    kept = [*glm_tower_tensors(job, shape), *glm_projector_tensors(job, shape)]
    saved = sum(tensor.bytes for tensor in kept if tensor.tensor != "image embeddings")
    assert saved == pytest.approx(case["bytes"], rel=1e-3)
    weights = vision_weights(shape, Frozen(), tensor=1)
    assert sum(part.elements for part in weights) == case["parameters"]


def test_a_block_more_keeps_exactly_what_it_saves() -> None:
    first, second, third = RECORDED["saved"][:3]
    shapes = [
        tower_shape(
            RECORDED["default"]["config"]
            | {"depth": c["depth"], "hidden_size": 256, "out_hidden_size": 512, "num_heads": 4},
            native=True,
        )
        for c in (second, third)
    ]
    job = replace(qwen_30b(), batch=replace(qwen_30b().batch, images=ImageLoad(patches=first["patches"])))
    sums = [sum(tensor.bytes for tensor in glm_tower_tensors(job, shape)) for shape in shapes]
    assert sums[1] - sums[0] == third["bytes"] - second["bytes"] == second["bytes"] - first["bytes"]


def test_its_language_model_has_one_dense_layer_and_the_real_weights() -> None:
    text = RECORDED["text"]["config"] | {"head_dim": 4096 // 96}
    reading = read_configuration(
        {"model_type": "glm4v_moe", "text_config": text}, world_size=1, overrides={"model.seq_length": 64}
    )
    output_layer = 151_424 * 4096
    assert sum(model_parameters(reading.job).values()) - output_layer == RECORDED["text"]["parameters"]


def test_glm_45v_is_a_hundred_billion_parameters_and_its_tower_stands_on_the_first_stage() -> None:
    job = job_of()
    assert sum(model_parameters(job).values()) == pytest.approx(107e9, rel=0.02)
    assert any(weights.component is Component.VISION for weights in stage_weights(job, 0))
    assert not any(weights.component is Component.VISION for weights in stage_weights(job, 1))


def test_neither_tensor_ranks_nor_recompute_reach_it_and_no_remedy_says_so() -> None:
    job = job_of()

    def tower(some: TrainingJob) -> int:
        (forward,) = [
            instant
            for instant in estimate(some).ranks[0].instants
            if instant.name == "layer forward" and not instant.first_step
        ]
        of_tower = [part for part in forward.parts if part.component is Component.VISION]
        return sum(part.bytes for part in of_tower if part.category is Category.ACTIVATIONS)

    everything = replace(job, recompute=Recompute(granularity=Granularity.FULL))
    assert tower(everything) == tower(job) > 14 * GIB
    split = job_of(**{"model.tensor_model_parallel_size": 2})
    assert tower(split) == tower(job)
    offered = find_remedies(job, 60 * GIB)
    full = [r for r in offered if r.change.get("model.recompute_granularity") == "full"]
    assert full
    assert all(remedy.legal for remedy in full)  # it has no deepstack levels to trip over
    assert any(remedy.title == "Freeze the vision tower" for remedy in offered)
    assert not any("vision" in key and "recompute" in key for remedy in offered for key in remedy.change)


def test_a_tower_of_another_family_is_refused_with_the_way_round() -> None:
    with pytest.raises(ValueError, match="Without vision_config the language model alone"):
        read_configuration(
            glm_45v(vision_config={"hidden_size": 1152, "model_type": "siglip"}),
            world_size=128,
            overrides={"model.seq_length": 4096},
        )
