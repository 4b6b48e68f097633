"""How many steps a configuration needs to show what it does, and how many of them only prepare.

A run of too few steps looks better than the job is: Adam's states are made by the first update, and CUDA
graphs are captured, with memory of their own, after warm-up steps. Read from the resolved
configuration that the job itself wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bisection.adapters.profiles import Profile
from bisection.measurement import FEWEST_TIMED_STEPS, Measurement, Outcome

#: Megatron Core's own default of `cuda_graph_warmup_steps`.
_CORE_WARMUP_STEPS = 3
#: Settings of Megatron Core by which CUDA graphs are switched on, of all its eras.
_IMPLEMENTATIONS = ("cuda_graph_impl", "vision_cuda_graph_impl")
_SWITCHES = ("enable_cuda_graph", "external_cuda_graph")


@dataclass(frozen=True, kw_only=True)
class StepNeeds:
    """Of one configuration. ``why`` is a part of a sentence."""

    least: int = 1 + FEWEST_TIMED_STEPS
    warmup: int = 1
    why: str = "the first step makes the optimizer's states"


def step_needs(model: Mapping[str, Any]) -> StepNeeds:
    """``model`` are the settings of the model, by the names of Megatron Core."""
    switched = [name for name in _IMPLEMENTATIONS if model.get(name) not in (None, "", "none")]
    switched += [name for name in _SWITCHES if model.get(name) in (True, "true", "True")]
    if not switched:
        return StepNeeds()
    warmup = _whole(model.get("cuda_graph_warmup_steps"), _CORE_WARMUP_STEPS)
    return StepNeeds(
        least=warmup + 1 + FEWEST_TIMED_STEPS,
        warmup=warmup + 1,
        why=f"{switched[0]} captures CUDA graphs after {warmup} steps",
    )


def needs_of_words(words: tuple[str, ...]) -> StepNeeds:
    """As a command line says it (`model.cuda_graph_impl=local`); what a recipe sets itself is not seen."""
    pairs = (word.lstrip("+~-").partition("=") for word in words if "=" in word)
    return step_needs({key.removeprefix("model."): value for key, _, value in pairs})


def kept_to_its_steps(measured: Measurement, config: bytes | None, profile: Profile) -> Measurement:
    """The measurement with its warm-up; INVALID where it ended before its configuration showed itself."""
    if profile.device in ("host", "dry_run"):
        return measured  # a command that trains nothing takes no steps, and a dry run two without seconds
    needs = step_needs(_model_of(config))
    measured = measured.evolve(warmup_steps=max(needs.warmup, profile.warmup_steps))
    if measured.outcome is not Outcome.COMPLETED or len(measured.steps) >= needs.least:
        return measured
    return measured.evolve(
        outcome=Outcome.INVALID,
        reason=f"{len(measured.steps)} steps were taken, and this configuration needs {needs.least}: "
        f"{needs.why}. Raise `steps` in the profile to {needs.least} or more",
    )


def _model_of(config: bytes | None) -> Mapping[str, Any]:
    try:
        row = json.loads(config) if config else None
    except ValueError:
        return {}
    model = row.get("model") if isinstance(row, dict) else None
    return model if isinstance(model, dict) else {}


def _whole(value: object, default: int) -> int:
    """The number, where it is one that a configuration may hold; text of a command line counts."""
    text = str(value)
    return int(text) if text.isdecimal() and len(text) < 6 else default
