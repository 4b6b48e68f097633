"""One job varied: what a setting means in its configuration, whether that is legal, and what it would need.

A variation is a set of changed keys of a Bridge configuration. Only keys that really change are in it, so
that a setting which the job has already is no variation at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memory_models.configurations import with_overrides
from memory_models.estimation import estimate
from memory_models.legality import refusals
from memory_models.reading import Reading, read_bridge_config
from memory_models.shapes import ImageLoad
from memory_models.upstream import NEWEST, Upstream

NONE = "none"
#: What stands between the scopes of one CUDA graph setting.
JOINED = "+"


class Axis(StrEnum):
    """What can be varied, each by words: a number, a name, or names joined by a plus."""

    MICRO_BATCH = "micro_batch"
    RECOMPUTE = "recompute"  #: none, selective (the modules that the job names, or core_attn), full
    GRAPH_SCOPE = "graph_scope"  #: none, or parts of layers such as attn+moe_router
    DISPATCHER = "dispatcher"  #: allgather, alltoall or flex
    EXPERT_PARALLEL = "expert_parallel"
    EXPERT_TENSOR_PARALLEL = "expert_tensor_parallel"


_SIZES = {
    Axis.MICRO_BATCH: "train.micro_batch_size",
    Axis.EXPERT_PARALLEL: "model.expert_model_parallel_size",
    Axis.EXPERT_TENSOR_PARALLEL: "model.expert_tensor_parallel_size",
}
_DISPATCHER = "model.moe_token_dispatcher_type"
BATCH = "train.global_batch_size"


@dataclass(frozen=True, kw_only=True)
class VariedEstimate:
    """What a varied job would need, on its worst rank; or why it cannot be."""

    allocated_bytes: int = 0  #: what the allocator's peak would be
    low_bytes: int = 0  #: of the band of 90 % around it
    high_bytes: int = 0
    device_bytes: int = 0  #: with fragmentation, CUDA context and NCCL: what has to fit into the card
    why_not: str = ""  #: the rule that refuses the job; "" where none is known
    unknown: str = ""  #: why there are no figures though the job may be legal

    def fits(self, capacity_bytes: int) -> str:
        """yes, no, or maybe where the capacity lies within the band."""
        outside = self.device_bytes - self.allocated_bytes
        if self.high_bytes + outside <= capacity_bytes:
            return "yes"
        return "no" if self.low_bytes + outside > capacity_bytes else "maybe"


def setting(axis: Axis, config: Mapping[str, Any]) -> str:
    """The word of an axis that describes a configuration as it is."""
    model = config.get("model") or {}
    match axis:
        case Axis.RECOMPUTE:
            return str(model.get("recompute_granularity") or NONE)
        case Axis.GRAPH_SCOPE:
            if str(model.get("cuda_graph_impl") or NONE) == NONE:
                return NONE
            held = model.get(_scope_key(model)) or ["layer"]
            return JOINED.join([held] if isinstance(held, str) else map(str, held))
        case Axis.DISPATCHER:
            return str(model.get("moe_token_dispatcher_type") or "allgather")
        case _:
            value = _held(config, _SIZES[axis])
            return str(1 if value is None else value)


def changes_of(axis: Axis, word: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that give a configuration this setting; empty where it has it already."""
    if word == setting(axis, config):
        return {}
    match axis:
        case Axis.RECOMPUTE:
            wanted = _recompute(word, config)
        case Axis.GRAPH_SCOPE:
            wanted = _graphs(word, config)
        case Axis.DISPATCHER:
            wanted = {_DISPATCHER: word}
        case _:
            wanted = {_SIZES[axis]: int(word)}
    return {key: value for key, value in wanted.items() if _held(config, key) != value}


def _recompute(word: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of whole layers, megatron-core wants method and number; otherwise it wants neither."""
    if word == "full":
        layers = {"model.recompute_method": "uniform", "model.recompute_num_layers": 1}
        return {"model.recompute_granularity": word, **layers}
    cleared = {"model.recompute_method": None, "model.recompute_num_layers": None}
    if word == NONE:
        return {"model.recompute_granularity": None, **cleared}
    modules = _held(config, "model.recompute_modules") or ["core_attn"]
    return {"model.recompute_granularity": word, "model.recompute_modules": list(modules), **cleared}


def _graphs(word: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of layers are captured by Transformer Engine, whose own random state has to be on for it."""
    key = f"model.{_scope_key(config.get('model') or {})}"
    if word == NONE:
        return {"model.cuda_graph_impl": NONE, key: []}
    switches = ("model.use_te_rng_tracker", "rng.te_rng_tracker")
    return {
        "model.cuda_graph_impl": "transformer_engine",
        key: word.split(JOINED),
        **{switch: True for switch in switches if _held(config, switch) is False},
    }


def _scope_key(model: Mapping[str, Any]) -> str:
    """The key's present name, unless the configuration is of an era that knew the older one only."""
    old = "cuda_graph_scope"
    return old if old in model and "cuda_graph_modules" not in model else "cuda_graph_modules"


def _held(config: Mapping[str, Any], key: str) -> Any:
    at: Any = config
    for name in key.split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def estimate_variation(
    config: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    world_size: int,
    images: ImageLoad | None = None,
    upstream: Upstream = NEWEST,
    tolerated: Collection[str] = (),
) -> VariedEstimate:
    """Legality and bytes of the changed job. ``tolerated`` are rules that are known not to hold here.

    Raises nothing: what cannot be laid out is illegal and says why, what cannot be read has no figures.
    """
    try:
        job = read_varied(config, {}, world_size=world_size, images=images, upstream=upstream).job
    except (ValueError, ArithmeticError) as error:
        return VariedEstimate(unknown=f"the memory model cannot follow this configuration: {error}")
    try:
        if changes:
            job = read_varied(config, changes, world_size=world_size, images=images, upstream=upstream).job
        broken = [rule for rule in refusals(job) if rule not in tolerated]
        if broken:
            return VariedEstimate(why_not="; ".join(broken))
        worst = estimate(job).worst
    except (ValueError, ArithmeticError) as error:
        return VariedEstimate(why_not=str(error))
    return VariedEstimate(
        allocated_bytes=worst.allocated_bytes,
        low_bytes=worst.low_bytes,
        high_bytes=worst.high_bytes,
        device_bytes=worst.device_bytes,
    )


def read_varied(
    config: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    world_size: int,
    images: ImageLoad | None = None,
    upstream: Upstream = NEWEST,
) -> Reading:
    """Raises ValueError where the changed configuration cannot be laid out."""
    try:
        whole = with_overrides(config, changes)
        return read_bridge_config(whole, world_size=world_size, images=images, upstream=upstream)
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise ValueError(f"a value has a kind that it cannot have: {error}") from error
