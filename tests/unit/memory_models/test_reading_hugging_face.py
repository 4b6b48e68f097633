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


def test_linear_attention_layers_are_refused_rather_than_miscounted() -> None:
    text = QWEN["text_config"] | {"layer_types": ["linear_attention", "full_attention"]}
    with pytest.raises(ValueError, match="linear_attention"):
        read_hugging_face_config({**QWEN, "text_config": text}, layout=LAYOUT, batch=BATCH)
