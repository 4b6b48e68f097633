"""A Hugging Face configuration gives the same model as the published counts."""

from __future__ import annotations

from typing import Any

import pytest

from memory_models.breakdown import Component
from memory_models.job import Batch, Frozen
from memory_models.layout import ParallelLayout
from memory_models.parameters import model_parameters
from memory_models.presets import QWEN3_VL_30B_A3B
from memory_models.reading_hugging_face import read_hugging_face_config

QWEN: dict[str, Any] = {
    "model_type": "qwen3_vl_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_vl_moe_text",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
    },
    "vision_config": {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}
LAYOUT = ParallelLayout(world_size=8, expert=8)
BATCH = Batch(micro=1, total=8, sequence_length=4096)


def test_qwen3_vl_is_read_to_its_published_shape() -> None:
    job = read_hugging_face_config(QWEN, layout=LAYOUT, batch=BATCH).job
    assert (job.text, job.vision) == QWEN3_VL_30B_A3B
    assert model_parameters(job)[Component.EXPERTS] == 29_003_612_160


def test_a_text_model_needs_no_text_config() -> None:
    dense = {key: value for key, value in QWEN["text_config"].items() if "expert" not in key}
    job = read_hugging_face_config(dense, layout=ParallelLayout(world_size=8), batch=BATCH).job
    assert job.vision is None
    assert job.text.experts is None


def test_layers_that_stay_dense_are_read() -> None:
    config = {**QWEN, "text_config": QWEN["text_config"] | {"mlp_only_layers": [0, 1]}}
    job = read_hugging_face_config(config, layout=LAYOUT, batch=BATCH).job
    assert [layer.feed_forward.value for layer in job.text.layers[:3]] == ["dense", "dense", "experts"]


def test_how_it_is_trained_is_the_callers_choice() -> None:
    job = read_hugging_face_config(QWEN, layout=LAYOUT, batch=BATCH, frozen=Frozen(vision=True)).job
    assert job.frozen.vision


def test_a_missing_size_names_its_key() -> None:
    text = {key: value for key, value in QWEN["text_config"].items() if key != "vocab_size"}
    with pytest.raises(ValueError, match="vocab_size"):
        read_hugging_face_config({**QWEN, "text_config": text}, layout=LAYOUT, batch=BATCH)


def test_layers_that_are_not_counted_are_refused() -> None:
    text = QWEN["text_config"] | {"layer_types": ["sliding_attention", "full_attention"] * 24}
    with pytest.raises(ValueError, match="sliding_attention"):
        read_hugging_face_config({**QWEN, "text_config": text}, layout=LAYOUT, batch=BATCH)
    text = QWEN["text_config"] | {"layer_types": ["full_attention"]}
    with pytest.raises(ValueError, match="1 entries for 48 layers"):
        read_hugging_face_config({**QWEN, "text_config": text}, layout=LAYOUT, batch=BATCH)


QWEN35: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "vocab_size": 248_320,
    },
    "vision_config": QWEN["vision_config"] | {"deepstack_visual_indexes": []},
}


def test_qwen35_is_read_to_its_published_parameters() -> None:
    job = read_hugging_face_config(QWEN35, layout=LAYOUT, batch=BATCH).job
    found = model_parameters(job)
    assert found[Component.VISION] / 1e9 == pytest.approx(0.416, abs=0.001)
    assert found[Component.PROJECTOR] / 1e6 == pytest.approx(31, abs=0.5)
    # 35.107 B in all, which the 35,951,822,704 of a published log confirms with its prediction layer.
    assert sum(found.values()) / 1e9 == pytest.approx(35.107, abs=0.001)


def test_full_attention_every_fourth_layer_is_the_same_as_its_list() -> None:
    types = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 10
    text = {key: value for key, value in QWEN35["text_config"].items() if key != "full_attention_interval"}
    listed = {**QWEN35, "text_config": text | {"layer_types": types}}
    jobs = [read_hugging_face_config(some, layout=LAYOUT, batch=BATCH).job for some in (QWEN35, listed)]
    assert jobs[0] == jobs[1]
