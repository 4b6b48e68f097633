"""Megatron Bridge's resolved configuration, read into a TrainingJob.

The configuration is nested JSON: dtypes as "torch.bfloat16", enums by name, callables by
name. Whatever the memory model does not follow is listed in the answer, for silence would
be a lie; traps that make a configuration mean less than it says are told as notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memory_models.configuration_keys import HARMLESS_SECTIONS, HARMLESS_WORDS, NOT_MODELLED
from memory_models.eras import phantom_keys, present_names
from memory_models.job import Batch, Frozen, TrainingJob
from memory_models.reading_batch import IMAGE_KEYS, read_images, read_packing, read_sequence_length
from memory_models.reading_choices import (
    read_adapters,
    read_attention,
    read_cross_entropy,
    read_expandable,
    read_frozen,
    read_graphs,
    read_implementation,
    read_layout,
    read_offload,
    read_optimizer,
    read_precision,
    read_recompute,
    read_routing,
    read_sharding,
)
from memory_models.reading_shapes import read_text, read_vision
from memory_models.reading_values import Section
from memory_models.shapes import ImageLoad, TextShape, VisionShape
from memory_models.upstream import NEWEST, Upstream


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A job, and what its configuration says that the job does not."""

    job: TrainingJob
    ignored: tuple[str, ...]  #: keys that may change memory and are not followed, with why
    notes: tuple[str, ...]  #: traps and assumptions


def read_bridge_config(
    config: Mapping[str, Any],
    *,
    world_size: int,
    images: ImageLoad | None = None,
    upstream: Upstream = NEWEST,
    shapes: tuple[TextShape, VisionShape | None] | None = None,
) -> Reading:
    """The job that a resolved ConfigContainer describes, on ``world_size`` GPUs.

    ``images`` is what one sample brings; where it is None the data set's own bounds are taken
    and a note says so. ``shapes`` stand in for those of the configuration's model, where it names
    none. Raises ValueError where the configuration cannot be laid out or a size is missing: the
    message names the key.
    """
    notes = list(upstream.told())
    config = present_names(config, notes)
    model, ddp = Section("model", config), Section("ddp", config)
    optimizer, train = Section("optimizer", config), Section("train", config)
    dataset, dist = Section("dataset", config), Section("dist", config)
    for key in IMAGE_KEYS:
        dataset.get(key)
    implementation = read_implementation(model, dist, notes)
    vision = read_vision(model, notes) if shapes is None else shapes[1]
    precision = read_precision(config, model, ddp)
    layout = read_layout(model, world_size, upstream, notes, vision=vision is not None)
    adapters = read_adapters(config, notes)
    offload, offloaded_layers = read_offload(model)
    job = TrainingJob(
        text=read_text(model, layout.tensor, notes) if shapes is None else shapes[0],
        vision=vision,
        tower_split=model.flag("vision_dp_when_cp"),
        layout=layout,
        batch=Batch(
            micro=train.integer("micro_batch_size"),
            total=train.integer("global_batch_size"),
            sequence_length=read_sequence_length(model, dataset),
            images=images
            if images is not None
            else (read_images(dataset, notes) if vision else ImageLoad(patches=0, images=0)),
            packed=read_packing(dataset, notes),
        ),
        recompute=read_recompute(model, notes),
        optimizer=read_optimizer(optimizer, ddp, precision),
        precision=precision,
        sharding=read_sharding(ddp, dist, notes),
        # FSDP's user buffers are its double buffers, registered.
        double_buffer=any([ddp.flag("fsdp_double_buffer"), ddp.flag("nccl_ub")]),
        frozen=read_frozen(model, vision is not None, notes)
        if adapters is None
        else Frozen(language=True, vision=True, projector=True),
        adapters=adapters,
        graphs=read_graphs(model, notes),
        offload=offload,
        offloaded_layers=offloaded_layers,
        routing=read_routing(model, notes),
        cross_entropy=read_cross_entropy(model),
        attention=read_attention(model, implementation),
        implementation=implementation,
        hidden_dropout=model.number("hidden_dropout", 0.0),
        attention_dropout=model.number("attention_dropout", 0.0),
        rope_fusion=model.flag("apply_rope_fusion"),
        softmax_in_float=model.flag("attention_softmax_in_fp32"),
        bias_activation_fusion=model.flag("bias_activation_fusion"),
        gradient_accumulation_fusion=model.flag("gradient_accumulation_fusion"),
        expandable_segments=read_expandable(config),
        user_buffers=ddp.flag("nccl_ub"),
        upstream=upstream,
    )
    if "mock" in str(dataset.get("_target_", "")).lower():
        notes.append("the data set is mock data: its images and its routing say nothing about a real run")
    sections = (model, ddp, optimizer, train, dataset, dist)
    return Reading(job=job, ignored=_ignored(config, sections), notes=tuple(notes))


def _ignored(config: Mapping[str, Any], sections: tuple[Section, ...]) -> tuple[str, ...]:
    """Keys that are set, were not read, and are not known to leave memory alone."""
    found: list[str] = []
    for key, what in NOT_MODELLED.items():
        section, _, name = key.partition(".")
        held = config.get(section)
        value = held.get(name) if name and isinstance(held, Mapping) else (held if not name else None)
        if value not in (None, False, 0, "", "none", "no_shard", "gated_delta_net", [], {}):
            found.append(f"{key}: {what}")
    phantoms = phantom_keys(sections)
    for read in sections:
        for name in read.unread():
            key = f"{read.name}.{name}"
            if key in phantoms:
                found.append(f"{key}: {phantoms[key]}")
            elif key not in NOT_MODELLED and not any(word in name for word in HARMLESS_WORDS):
                found.append(f"{key}: unknown to the memory model")
    names = {read.name for read in sections}
    for name, value in config.items():
        if name in names or name in HARMLESS_SECTIONS or name.startswith("_") or name in NOT_MODELLED:
            continue
        if name not in ("mixed_precision", "comm_overlap") and value not in (None, {}, []):
            found.append(f"{name}: a section unknown to the memory model")
    return tuple(found)
