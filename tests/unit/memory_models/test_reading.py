"""A resolved Bridge configuration is read, and nothing is ignored in silence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from memory_models.job import Granularity, Implementation, Sharding
from memory_models.reading import read_bridge_config
from memory_models.shapes import FeedForward, ImageLoad

TINY = json.loads((Path(__file__).parent / "data" / "qwen3_vl_moe_tiny_bridge_0_3_1.json").read_text())
IMAGE = ImageLoad(patches=256)


def changed(**keys: Any) -> dict[str, Any]:
    """The tiny configuration on a GPU, with some keys set: ``model__bf16=True``."""
    config: dict[str, Any] = copy.deepcopy(TINY)
    config["dist"]["distributed_backend"] = "nccl"
    for name, value in keys.items():
        section, key = name.split("__", 1)
        if key:
            config[section][key] = value
        else:
            config[section] = value
    return config


def test_a_real_resolved_configuration_leaves_nothing_unread() -> None:
    reading = read_bridge_config(TINY, world_size=1, images=IMAGE)
    assert reading.ignored == ()
    assert reading.job.implementation is Implementation.UNFUSED
    assert any("gloo" in note for note in reading.notes)
    assert reading.job.text.experts is not None
    assert (reading.job.text.experts.count, reading.job.text.experts.top_k) == (8, 2)


def test_precision_and_gradient_width_follow_the_configuration() -> None:
    job = read_bridge_config(
        changed(model__bf16=True, model__params_dtype="torch.bfloat16", ddp__grad_reduce_in_fp32=False),
        world_size=1,
        images=IMAGE,
    ).job
    assert (job.precision.parameter_bytes, job.precision.gradient_bytes) == (2, 2)
    assert job.optimizer.master_bytes == 4


def test_dense_layers_that_a_provider_does_not_build_are_not_counted_and_told() -> None:
    """Bridge's Qwen3-VL providers build one kind of layer; a provider of one's own may read the key."""
    pattern = [0, 1, 0, 1]
    reading = read_bridge_config(changed(model__moe_layer_freq=pattern), world_size=1, images=IMAGE)
    assert {layer.feed_forward for layer in reading.job.text.layers} == {FeedForward.EXPERTS}
    assert any("moe_layer_freq does nothing" in note for note in reading.notes)
    own = changed(model__moe_layer_freq=pattern, model___target_="recipes.mixed.MixedProvider")
    reading = read_bridge_config(own, world_size=1, images=IMAGE)
    assert [layer.feed_forward is FeedForward.EXPERTS for layer in reading.job.text.layers] == pattern
    assert not any("moe_layer_freq" in note for note in reading.notes)


def test_a_sharding_strategy_without_the_fsdp_flag_shards_nothing_and_is_told() -> None:
    config = changed(ddp__data_parallel_sharding_strategy="optim_grads_params")
    reading = read_bridge_config(config, world_size=1, images=IMAGE)
    assert reading.job.sharding is Sharding.NONE
    assert any("nothing is sharded" in note for note in reading.notes)


def test_an_old_name_of_the_fsdp_flag_is_understood() -> None:
    config = changed(ddp__data_parallel_sharding_strategy="optim_grads_params", ddp__use_custom_fsdp=True)
    config["dist"]["use_megatron_fsdp"] = True
    reading = read_bridge_config(config, world_size=1, images=IMAGE)
    assert reading.job.sharding is Sharding.EVERYTHING
    assert any("use_custom_fsdp is read as" in note for note in reading.notes)


def test_frozen_parts_and_mock_data_are_told() -> None:
    config = changed(model__freeze_language_model=True, model__freeze_vision_model=True)
    config["dataset"]["_target_"] = "megatron.bridge.data.MockVLMConversationProvider"
    notes = " / ".join(read_bridge_config(config, world_size=1, images=IMAGE).notes)
    assert "frozen: language model, vision tower" in notes
    assert "mock data" in notes


def test_the_deprecated_moe_layer_recompute_is_the_module_moe() -> None:
    job = read_bridge_config(changed(model__moe_layer_recompute=True), world_size=1, images=IMAGE).job
    assert job.recompute.granularity is Granularity.SELECTIVE
    assert job.recompute.drops("moe")


def test_what_is_not_modelled_is_listed() -> None:
    config = changed(model__fp4="nvfp4", model__tp_comm_overlap=True, model__brand_new_knob=7)
    ignored = " / ".join(read_bridge_config(config, world_size=1, images=IMAGE).ignored)
    assert "model.fp4" in ignored
    assert "model.tp_comm_overlap" in ignored
    assert "model.brand_new_knob: unknown" in ignored


def test_an_unset_expert_tensor_size_is_the_tensor_size_without_expert_parallelism() -> None:
    config = changed(model__expert_tensor_parallel_size=None, model__tensor_model_parallel_size=2)
    reading = read_bridge_config(config, world_size=2, images=IMAGE)
    assert reading.job.layout.expert_tensor == 2
    assert any("6f2f546ef" in note for note in reading.notes)


def test_a_missing_size_names_its_key() -> None:
    config = changed()
    del config["train"]["micro_batch_size"]
    with pytest.raises(ValueError, match=r"train\.micro_batch_size"):
        read_bridge_config(config, world_size=1, images=IMAGE)


def test_an_unknown_image_load_is_assumed_and_told() -> None:
    reading = read_bridge_config(changed(), world_size=1)
    assert any("image load is not known" in note for note in reading.notes)
    assert reading.job.batch.images.patches > 0
