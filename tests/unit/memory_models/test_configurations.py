"""Configurations as people have them: the kind is seen, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memory_models.configurations import Kind, kind_of, read_configuration
from memory_models.estimation import estimate
from memory_models.megatron_arguments import parse_arguments
from memory_models.shapes import ImageLoad
from tests.unit.memory_models.bridge_configurations import VISION, qwen_recipe

TINY = json.loads((Path(__file__).parent / "data" / "qwen3_vl_moe_tiny_bridge_0_3_1.json").read_text())
SCRIPT = """
# a comment
torchrun --nproc_per_node 8 pretrain_gpt.py \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 \\
    --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 --bf16 --swiglu \\
    --no-rope-fusion --use-distributed-optimizer --recompute-modules moe_act layernorm --lr=1.0e-4
"""
QWEN: dict[str, Any] = {
    "model_type": "qwen3_vl_moe",
    "vision_config": VISION,
    "text_config": {
        "model_type": "qwen3_vl_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151_936,
    },
}


def test_the_kind_is_seen_from_the_keys() -> None:
    assert kind_of(TINY) is Kind.BRIDGE
    assert kind_of(QWEN) is Kind.HUGGING_FACE
    assert kind_of(parse_arguments(SCRIPT)) is Kind.MEGATRON
    assert kind_of({"MODEL_ARGS": {"--num-layers": 2}}) is Kind.MEGATRON
    with pytest.raises(ValueError, match="no configuration that is known"):
        kind_of({"hello": 1})


def test_a_script_and_a_mapping_of_its_flags_are_the_same_job() -> None:
    arguments = parse_arguments(SCRIPT)
    assert arguments["apply_rope_fusion"] is False
    assert arguments["recompute_modules"] == ["moe_act", "layernorm"]
    assert arguments["lr"] == 1.0e-4
    flags = {f"--{name.replace('_', '-')}": value for name, value in arguments.items()}
    assert (
        read_configuration(arguments, world_size=8).job
        == read_configuration({"MODEL_ARGS": flags}, world_size=8).job
    )


def test_a_shell_variable_tells_no_value() -> None:
    with pytest.raises(ValueError, match=r"shell variable '\$LAYERS'"):
        parse_arguments("--num-layers $LAYERS --bf16")


def test_arguments_without_a_vocabulary_name_what_is_missing() -> None:
    arguments = parse_arguments(SCRIPT.replace("--vocab-size 32000", ""))
    with pytest.raises(ValueError, match="--vocab-size or --padded-vocab-size"):
        read_configuration(arguments, world_size=8)


@pytest.mark.parametrize("config", [TINY, QWEN, {"num_layers": 2}])
def test_without_a_number_of_gpus_it_is_asked_for(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give the number \(--gpus\)"):
        read_configuration(config)


def test_a_hugging_face_model_with_a_layout_is_bridges_recipe() -> None:
    image = ImageLoad.of_pixels(448, 448)
    layout = {
        "model.seq_length": 4096,
        "model.expert_model_parallel_size": 8,
        "train.global_batch_size": 64,
    }
    planned = read_configuration(QWEN, world_size=32, images=image, overrides=layout)
    assert planned.ignored == ()
    bridge = read_configuration(qwen_recipe(), world_size=32)
    assert estimate(planned.job).to_json() == estimate(bridge.job).to_json()


def test_a_hugging_face_model_alone_does_not_say_how_it_is_trained() -> None:
    with pytest.raises(ValueError, match=r"model\.seq_length"):
        read_configuration(QWEN, world_size=8)


def test_overrides_leave_the_configuration_as_it_was() -> None:
    config = qwen_recipe()
    reading = read_configuration(config, world_size=32, overrides={"train.micro_batch_size": 2})
    assert reading.job.batch.micro == 2
    assert config == qwen_recipe()
    with pytest.raises(ValueError, match=r"write section\.name"):
        read_configuration(config, world_size=32, overrides={"micro_batch_size": 2})


def test_the_configuration_itself_may_say_which_code_runs_it() -> None:
    config = qwen_recipe(model__expert_tensor_parallel_size=None, model__tensor_model_parallel_size=2)
    config["upstream"] = {"megatron-bridge": "0.3.1"}
    assert read_configuration(config, world_size=32).job.layout.expert_tensor == 2
    newer = read_configuration(config, world_size=32, versions={"megatron-bridge": "0.6"})
    assert newer.job.layout.expert_tensor == 1


@pytest.mark.parametrize(
    "keys",
    [
        {"model__num_layers": 10**9},
        {"model__num_layers": [48]},
        {"model__pipeline_model_parallel_layout": "Et*999999999|L"},
        {"model__vision_config": {"depth": [], "num_position_embeddings": 1}},
        {"model__moe_layer_freq": 0},
        {"train__global_batch_size": 65},
        {"model__pipeline_model_parallel_size": 32, "model__virtual_pipeline_model_parallel_size": 16},
        {"model__recompute_granularity": "some"},
        {"model__microbatch_group_size_per_vp_stage": 10**9},
    ],
)
def test_a_value_that_no_job_can_have_is_refused_at_once(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_configuration(qwen_recipe(**keys), world_size=32)
