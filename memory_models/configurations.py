"""A configuration of any kind that people have, read into a job.

Megatron Bridge's resolved configuration, Megatron-LM's arguments, or a Hugging Face config.json with a
layout: which one it is can be seen from its keys. Opening files is the caller's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from memory_models.distributions import Unknowns
from memory_models.job import Batch, Card
from memory_models.layout import ParallelLayout
from memory_models.megatron_arguments import DEFAULTS, destinations
from memory_models.reading import Reading, read_bridge_config
from memory_models.reading_hugging_face import read_hugging_face_config
from memory_models.reading_megatron import read_megatron_arguments
from memory_models.shapes import ImageLoad
from memory_models.upstream import Upstream, upstream_at


class Kind(StrEnum):
    """What a configuration was written for."""

    BRIDGE = "Megatron Bridge"
    MEGATRON = "Megatron-LM"
    HUGGING_FACE = "Hugging Face"


#: How a Hugging Face model is trained where nothing is said: as Bridge's recipes do.
_RECIPE: Mapping[str, Any] = {
    "mixed_precision": "bf16_mixed",
    "model": {
        "gradient_accumulation_fusion": True,
        "bias_activation_fusion": True,
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "moe_token_dispatcher_type": "alltoall",
        "cross_entropy_loss_fusion": True,
        "cross_entropy_fusion_impl": "te",
    },
    "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
    "train": {"micro_batch_size": 1},
}


def kind_of(config: Mapping[str, Any]) -> Kind:
    """Raises ValueError where the keys are those of no kind."""
    if isinstance(config.get("model"), Mapping):
        return Kind.BRIDGE
    if "model_type" in config or "text_config" in config or "num_hidden_layers" in config:
        return Kind.HUGGING_FACE
    if "MODEL_ARGS" in config or "num_layers" in destinations(config):
        return Kind.MEGATRON
    raise ValueError(
        "this is no configuration that is known here: a Megatron Bridge configuration has a section 'model', "
        "Megatron-LM's arguments have num_layers, a Hugging Face config.json has model_type"
    )


def read_configuration(
    config: Mapping[str, Any],
    *,
    world_size: int | None = None,
    images: ImageLoad | None = None,
    overrides: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    card: Card = Card.HOPPER,
    unknowns: Unknowns = Unknowns(),
) -> Reading:
    """The job of a configuration.

    ``overrides`` are Bridge's keys ("train.micro_batch_size") or, over Megatron-LM's arguments, theirs; a
    Hugging Face model needs them for its layout and batch. ``versions`` say what upstream runs it (see
    `upstream_at`); a section "upstream" of the configuration says the same. ``unknowns`` widen the band.
    Raises ValueError that names
    what is missing and how to give it.
    """
    try:
        found = _read(dict(config), world_size, images, dict(overrides or {}), dict(versions or {}), card)
        return replace(found, job=replace(found.job, unknowns=unknowns))
    except (TypeError, AttributeError, KeyError, IndexError, ArithmeticError) as error:
        # A word where a number belongs, a list where a mapping does: the reader trips over it at any depth.
        raise ValueError(f"a value has a kind that it cannot have: {error}") from error


def _read(
    config: dict[str, Any],
    world_size: int | None,
    images: ImageLoad | None,
    overrides: dict[str, Any],
    versions: dict[str, Any],
    card: Card,
) -> Reading:
    upstream = upstream_at({**(config.pop("upstream", None) or {}), **versions})
    kind = kind_of(config)
    if kind is Kind.MEGATRON:
        return _megatron(config, overrides, world_size, upstream, card)
    if world_size is None:
        raise ValueError("a configuration does not say on how many GPUs it runs: give the number (--gpus)")
    if kind is Kind.BRIDGE:
        whole = with_overrides(config, overrides)
        reading = read_bridge_config(whole, world_size=world_size, images=images, upstream=upstream)
    else:
        reading = _hugging_face(config, overrides, world_size, images, upstream)
    return replace(reading, job=replace(reading.job, card=card))


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with dotted keys set. Raises ValueError for a key that names no section."""
    whole = copy.deepcopy(dict(config))
    for key, value in overrides.items():
        *sections, name = key.split(".")
        if not sections or not name:
            raise ValueError(f"{key!r} is no key of a Bridge configuration: write section.name")
        at = whole
        for section in sections:
            inside = at.setdefault(section, {})
            if not isinstance(inside, dict):
                raise ValueError(f"{key!r} cannot be set: {section} is {inside!r}, no section")
            at = inside
        at[name] = value
    return whole


def _megatron(
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    world_size: int | None,
    upstream: Upstream,
    card: Card,
) -> Reading:
    held = config.get("MODEL_ARGS", config)
    if not isinstance(held, Mapping):
        raise ValueError("MODEL_ARGS is no mapping of flags to values")
    arguments = destinations(held) | destinations(overrides)
    environment = config.get("ENV_VARS")
    world_size = world_size or arguments.get("world_size")
    if world_size is None:
        raise ValueError("the arguments do not say on how many GPUs they run: give the number (--gpus)")
    padded = arguments.get("padded_vocab_size")
    if padded is None:
        size = arguments.get("vocab_size")
        if size is None:
            raise ValueError(
                "the arguments do not say the size of the vocabulary, which the tokenizer brings: "
                "add --vocab-size or --padded-vocab-size"
            )
        unit = int(arguments.get("make_vocab_size_divisible_by") or 128)
        unit *= int(arguments.get("tensor_model_parallel_size") or 1)
        padded = -(-int(size) // unit) * unit
    return read_megatron_arguments(
        arguments,
        world_size=int(world_size),
        padded_vocabulary=int(padded),
        defaults=DEFAULTS,
        environment=environment if isinstance(environment, Mapping) else None,
        card=card,
        upstream=upstream,
    )


def _hugging_face(
    config: Mapping[str, Any],
    overrides: Mapping[str, Any],
    world_size: int,
    images: ImageLoad | None,
    upstream: Upstream,
) -> Reading:
    plan = with_overrides(_RECIPE, overrides)
    model, train = plan["model"], plan["train"]
    if "seq_length" not in model:
        raise ValueError(
            "a Hugging Face configuration does not say how it is trained: give at least "
            "model.seq_length=N (--set), and the layout by Bridge's keys, "
            "such as model.expert_model_parallel_size=8"
        )
    train.setdefault("global_batch_size", int(train["micro_batch_size"]) * world_size)
    bare = read_hugging_face_config(
        config,
        layout=ParallelLayout(world_size=1),
        batch=Batch(micro=1, total=1, sequence_length=1),
    )
    text, vision = bare.job.text, bare.job.vision
    if text.has_experts:
        model["num_moe_experts"] = text.experts.count if text.experts else None
    reading = read_bridge_config(
        plan, world_size=world_size, images=images, upstream=upstream, shapes=(text, vision)
    )
    told = "training choices that --set does not name are those of Bridge's recipes"
    return Reading(job=reading.job, ignored=reading.ignored, notes=(*bare.notes, *reading.notes, told))
