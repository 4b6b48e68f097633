"""Configurations of other eras: keys that were renamed, switches that became others, and phantoms.

Megatron Bridge is read since 0.2. A name is followed by its meaning, whatever the era: an old one is
read as its present one, and a note says so. A phantom is a key that the code never reads: Python sets any
attribute of a dataclass, so a misspelt or misplaced key changes nothing and nobody complains.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from memory_models.reading_values import Section

_UNSET: tuple[Any, ...] = (None, False, [], "", "none")

#: Old name -> present name, of keys that kept their meaning.
RENAMED: dict[str, str] = {
    "ddp.use_custom_fsdp": "ddp.use_megatron_fsdp",  # 2025-08-21
    "dist.use_custom_fsdp": "dist.use_megatron_fsdp",
    "model.cuda_graph_scope": "model.cuda_graph_modules",  # 2026-05-18
    "model.num_experts": "model.num_moe_experts",
    "dataset.sequence_length": "dataset.seq_length",  # 2025-11-27
    "model.sequence_length": "model.seq_length",
    "dataset.pack_sequences_in_batch": "dataset.enable_in_batch_packing",  # 2026-06-24
    "model.moe_deepep_num_sms": "model.moe_flex_dispatcher_num_sms",  # 2026-07-08
    "model.moe_hybridep_num_sms": "model.moe_flex_dispatcher_num_sms",
    "comm_overlap.overlap_moe_expert_parallel_comm": "model.overlap_moe_expert_parallel_comm",
    "comm_overlap.delay_wgrad_compute": "model.delay_wgrad_compute",
}

#: Old switch -> what it sets today, where it is on.
SWITCHES: dict[str, dict[str, Any]] = {
    "model.enable_cuda_graph": {"model.cuda_graph_impl": "local"},
    "model.external_cuda_graph": {"model.cuda_graph_impl": "transformer_engine"},
    "model.moe_enable_deepep": {"model.moe_flex_dispatcher_backend": "deepep"},  # until 2025-11-18
}

#: Values that were renamed: a scope of a CUDA graph became an implementation.
_MOVED_VALUES: dict[tuple[str, str], dict[str, Any]] = {
    ("model.cuda_graph_modules", "full_iteration"): {"model.cuda_graph_impl": "full_iteration"},
    ("model.cuda_graph_modules", "full"): {},
}

#: Keys that rightly stand in more than one section.
_SHARED = frozenset({"seq_length", "fp8_recipe", "params_dtype", "use_distributed_optimizer", "bf16", "fp16"})

#: Names of a kind that a word may be a slip of; of them only long ones are compared.
_LEAST_LETTERS = 8


def present_names(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The configuration with every key of another era under its present name, and a note for each.

    Where both names are set to different things, the present one counts and the other is told.
    """
    copy: dict[str, Any] = {
        name: dict(section) if isinstance(section, Mapping) else section for name, section in config.items()
    }
    for old, new in RENAMED.items():
        _move(copy, old, new, notes)
    for old, consequences in SWITCHES.items():
        section, key = old.split(".")
        held = copy.get(section)
        if isinstance(held, dict) and held.get(key):
            for new, value in consequences.items():
                present = new.split(".")[1]
                if held.get(present) in _UNSET:
                    held[present] = value
            notes.append(f"{old} is an old switch: read as {_words(consequences)}")
            del held[key]
    _move_values(copy, notes)
    return copy


def _move(copy: dict[str, Any], old: str, new: str, notes: list[str]) -> None:
    (section, key), (target, present) = old.split("."), new.split(".")
    held = copy.get(section)
    if not isinstance(held, dict) or key not in held:
        return
    value = held.pop(key)
    if value in _UNSET or value == 0:
        return
    into = copy.setdefault(target, {})
    if not isinstance(into, dict):
        return
    standing = into.get(present)
    if standing in _UNSET:
        into[present] = value
        notes.append(f"{old} is read as {new}, its present name")
    elif standing != value and section == target and "num_sms" not in key:
        notes.append(f"{old} = {value!r} is a phantom: {new} = {standing!r} is what counts")


def _move_values(copy: dict[str, Any], notes: list[str]) -> None:
    for (name, value), consequences in _MOVED_VALUES.items():
        section, key = name.split(".")
        held = copy.get(section)
        if not isinstance(held, dict):
            continue
        given = held.get(key)
        listed = [given] if isinstance(given, str) else list(given or [])
        if value not in listed:
            continue
        held[key] = [word for word in listed if word != value]
        for new, implied in consequences.items():
            held[new.split(".")[1]] = implied
        if consequences:
            notes.append(f"{name} {value!r} is an old value: read as {_words(consequences)}")


def _words(consequences: Mapping[str, Any]) -> str:
    return " and ".join(f"{key} = {value!r}" for key, value in consequences.items())


def phantom_keys(sections: tuple[Section, ...]) -> dict[str, str]:
    """Set keys that no code of that section reads, by "section.key", with what was probably meant."""
    owners: dict[str, list[str]] = {}
    for section in sections:
        for name in section.asked:
            owners.setdefault(name, []).append(section.name)
    found: dict[str, str] = {}
    for section in sections:
        for name in section.unread():
            if name in _SHARED:
                continue
            if name in owners:
                place = f"{owners[name][0]}.{name}"
                found[f"{section.name}.{name}"] = f"probably a phantom: {place} is what the code reads"
                continue
            near = get_close_matches(name, section.asked - {"_target_"}, n=1, cutoff=0.93)
            if near and len(name) >= _LEAST_LETTERS:
                meant = f"{section.name}.{near[0]}"
                found[f"{section.name}.{name}"] = f"probably a phantom: a slip of {meant}?"
    return found
