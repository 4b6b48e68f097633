"""Megatron-LM arguments are read, and land near what the allocator of such a run said."""

from __future__ import annotations

from typing import Any

import pytest

from memory_models.estimation import estimate_rank
from memory_models.job import Backend, Card, Sharding
from memory_models.parameters import model_parameters
from memory_models.reading_megatron import read_megatron_arguments
from memory_models.shapes import FeedForward, Mixer

#: The small GPT of Megatron-LM's own tests, on 8 GPUs.
GPT: dict[str, Any] = {
    "num_layers": 12,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "micro_batch_size": 4,
    "global_batch_size": 32,
    "seq_length": 1024,
    "max_position_embeddings": 1024,
    "transformer_impl": "transformer_engine",
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 4,
    "num_layers_per_virtual_pipeline_stage": 1,
    "bf16": True,
    "attention_backend": "unfused",
    "deterministic_mode": True,
    "add_bias_linear": True,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
}


def read(*, world_size: int = 8, card: Card = Card.HOPPER, **changes: Any) -> Any:
    return read_megatron_arguments(
        GPT | changes, world_size=world_size, padded_vocabulary=50_304, card=card
    ).job


@pytest.mark.parametrize(("card", "measured_mib"), [(Card.HOPPER, 3956), (Card.AMPERE, 3932)])
def test_an_interleaved_gpt_comes_within_a_percent_of_its_measured_peak(
    card: Card, measured_mib: int
) -> None:
    """Measured: the last rank's allocator peak in upstream's test gpt3_mcore_te_tp1_pp4_vp1."""
    answer = estimate_rank(read(card=card), 3)
    assert answer.allocated_bytes / 2**20 == pytest.approx(measured_mib, rel=0.01)


def test_layers_per_virtual_stage_become_chunks() -> None:
    assert read().layout.virtual_pipeline == 3
    assert [len(chunk.layers) for chunk in read().chunks[3]] == [1, 1, 1]


def test_experts_follow_the_layer_frequency() -> None:
    job = read(
        num_layers_per_virtual_pipeline_stage=None,
        num_experts=8,
        moe_layer_freq="([0]*1+[1]*11)",
        add_bias_linear=False,
    )
    kinds = [layer.feed_forward for layer in job.text.layers]
    assert kinds == [FeedForward.DENSE] + [FeedForward.EXPERTS] * 11


def test_a_hybrid_pattern_places_layers_and_stages() -> None:
    job = read(
        hybrid_layer_pattern="M-|M*|M-|M-",
        num_layers_per_virtual_pipeline_stage=None,
        pipeline_model_parallel_size=2,
    )
    assert [layer.mixer for layer in job.text.layers[:4]] == [
        Mixer.MAMBA,
        Mixer.NONE,
        Mixer.MAMBA,
        Mixer.ATTENTION,
    ]
    assert job.layout.custom == "tt|tt|tt|tt"


def test_determinism_takes_flash_attention_where_cudnn_is_not_deterministic() -> None:
    asked = {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0}

    def backend(card: Card) -> Backend:
        arguments = GPT | {"attention_backend": "auto"}
        reading = read_megatron_arguments(
            arguments, world_size=8, padded_vocabulary=50_304, card=card, environment=asked
        )
        return reading.job.attention

    assert backend(Card.HOPPER) is Backend.FUSED
    assert backend(Card.AMPERE) is Backend.FLASH


def test_fsdp_needs_its_flag() -> None:
    plain: dict[str, Any] = {"pipeline_model_parallel_size": 1, "num_layers_per_virtual_pipeline_stage": None}
    assert read(data_parallel_sharding_strategy="optim_grads_params", **plain).sharding is Sharding.NONE
    job = read(data_parallel_sharding_strategy="optim_grads_params", use_megatron_fsdp=True, **plain)
    assert job.sharding is Sharding.EVERYTHING


def test_a_schedule_of_batch_sizes_starts_with_its_first() -> None:
    scheduled: dict[str, Any] = {"global_batch_size": None, "step_batch_size_schedule": "0:64 200B:128"}
    assert read(**scheduled).batch.total == 64
    with pytest.raises(ValueError, match="step-batch-size-schedule"):
        read(**scheduled | {"step_batch_size_schedule": "200B:128"})


def test_what_is_not_followed_is_listed() -> None:
    reading = read_megatron_arguments(GPT | {"tp_comm_overlap": True}, world_size=8, padded_vocabulary=50_304)
    assert reading.ignored == ("--tp-comm-overlap: not followed",)


def test_tied_embeddings_count_once_in_the_model() -> None:
    tied, untied = read(), read(untie_embeddings_and_output_weights=True)
    rows = 50_304 * 512
    assert sum(model_parameters(untied).values()) - sum(model_parameters(tied).values()) == rows


def test_a_missing_argument_is_named() -> None:
    arguments = {name: value for name, value in GPT.items() if name != "hidden_size"}
    with pytest.raises(ValueError, match="--hidden-size"):
        read_megatron_arguments(arguments, world_size=8, padded_vocabulary=50_304)
