"""What a setting changes in a configuration, and what upstream's checks refuse, whatever the combination."""

from __future__ import annotations

from typing import Any

import pytest

from memory_models.calibration import DEFAULT
from memory_models.configurations import read_configuration
from memory_models.legality import refusals
from memory_models.proposals import proposals
from memory_models.variations import Axis, changes_of, estimate_variation, read_varied, setting
from tests.unit.memory_models.bridge_configurations import qwen_recipe

GIB = 2**30
WORLD = 32


def changed(axis: Axis, word: str, **keys: Any) -> dict[str, Any]:
    return changes_of(axis, word, qwen_recipe(**keys))


@pytest.mark.parametrize("axis", Axis)
def test_a_setting_that_a_job_has_already_changes_nothing(axis: Axis) -> None:
    config = qwen_recipe(model__recompute_granularity="selective", model__cuda_graph_impl="local")
    assert changes_of(axis, setting(axis, config), config) == {}


def test_each_setting_reads_back_as_what_was_asked_for() -> None:
    words = {
        Axis.MICRO_BATCH: "2",
        Axis.RECOMPUTE: "full",
        Axis.GRAPH_SCOPE: "moe_router+moe_preprocess",
        Axis.DISPATCHER: "allgather",
        Axis.EXPERT_PARALLEL: "4",
        Axis.EXPERT_TENSOR_PARALLEL: "2",
    }
    config = qwen_recipe()
    changes: dict[str, Any] = {}
    for axis, word in words.items():
        changes |= changes_of(axis, word, config)
    job = read_varied(config, changes, world_size=WORLD).job
    assert (job.batch.micro, job.layout.expert, job.layout.expert_tensor) == (2, 4, 2)
    assert (job.recompute.granularity, job.routing.dispatcher) == ("full", "allgather")
    assert job.graphs.scopes == {"moe_router", "moe_preprocess"}


def test_recompute_goes_without_the_keys_that_megatron_core_refuses_beside_it() -> None:
    full = {
        "model__recompute_granularity": "full",
        "model__recompute_method": "uniform",
        "model__recompute_num_layers": 1,
    }
    assert changed(Axis.RECOMPUTE, "selective", **full, model__recompute_modules=["moe"]) == {
        "model.recompute_granularity": "selective",
        "model.recompute_method": None,
        "model.recompute_num_layers": None,
    }
    assert changed(Axis.RECOMPUTE, "selective") == {
        "model.recompute_granularity": "selective",
        "model.recompute_modules": ["core_attn"],
    }


def test_a_graph_scope_takes_the_key_of_the_configurations_own_era_and_switches_the_random_state() -> None:
    assert changed(Axis.GRAPH_SCOPE, "attn", model__cuda_graph_scope=[], rng__te_rng_tracker=False) == {
        "model.cuda_graph_impl": "transformer_engine",
        "model.cuda_graph_scope": ["attn"],
        "rng.te_rng_tracker": True,
    }
    assert "model.cuda_graph_modules" in changed(Axis.GRAPH_SCOPE, "attn")


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        (
            {"model__recompute_granularity": "full", "model__cuda_graph_impl": "transformer_engine"},
            "megatron-core rejects full recompute with graphs of parts of layers",
        ),
        (
            {
                "model__recompute_granularity": "selective",
                "model__recompute_modules": ["moe"],
                "model__cuda_graph_impl": "transformer_engine",
                "model__cuda_graph_modules": ["moe_router"],
            },
            "recompute of moe with a CUDA graph of its router",
        ),
        (
            {"model__cuda_graph_impl": "transformer_engine", "model__cuda_graph_modules": ["moe_preprocess"]},
            "moe_preprocess only together with moe_router",
        ),
        (
            {"model__expert_tensor_parallel_size": 5, "model__expert_model_parallel_size": 1},
            "GPUs do not divide",
        ),
        ({"train__micro_batch_size": 3}, "the global batch 64 does not divide"),
    ],
)
def test_an_illegal_combination_is_named_by_its_rule_and_has_no_figures(
    keys: dict[str, Any], rule: str
) -> None:
    told = estimate_variation(
        qwen_recipe(), {name.replace("__", "."): value for name, value in keys.items()}, world_size=WORLD
    )
    assert rule in told.why_not
    assert told.allocated_bytes == 0


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"model__cuda_graph_impl": "local"},
        {"model__cuda_graph_impl": "transformer_engine", "model__cuda_graph_modules": ["attn", "moe_router"]},
        {"model__recompute_granularity": "selective", "model__recompute_modules": ["moe"]},
        {"model__moe_grouped_gemm": False},
    ],
)
def test_what_the_remedies_call_legal_no_rule_refuses(keys: dict[str, Any]) -> None:
    job = read_configuration(qwen_recipe(**keys), world_size=WORLD).job
    assert refusals(job) == ()
    legal = [one for one in proposals(job, 60 * GIB, DEFAULT) if one.job is not None and not one.why_not]
    assert len(legal) > 5
    for proposal in legal:
        assert proposal.job is not None
        assert refusals(proposal.job) == (), proposal.title


def test_a_rule_that_is_known_not_to_hold_refuses_nothing() -> None:
    changes = {"model.recompute_granularity": "full", "model.cuda_graph_impl": "transformer_engine"}
    refused = estimate_variation(qwen_recipe(), changes, world_size=WORLD)
    known = estimate_variation(qwen_recipe(), changes, world_size=WORLD, tolerated=[refused.why_not])
    assert refused.why_not
    assert known.why_not == ""
    assert known.allocated_bytes > 0


def test_a_configuration_that_nobody_can_read_has_no_figures_and_refuses_nothing() -> None:
    told = estimate_variation({"model": {}, "train": {}}, {}, world_size=1)
    assert told.why_not == ""
    assert "cannot follow this configuration" in told.unknown


def test_whether_it_fits_is_told_by_the_band() -> None:
    told = estimate_variation(qwen_recipe(), {}, world_size=WORLD)
    outside = told.device_bytes - told.allocated_bytes
    assert told.fits(told.high_bytes + outside) == "yes"
    assert told.fits(told.allocated_bytes + outside) == "maybe"
    assert told.fits(told.low_bytes + outside - 1) == "no"
