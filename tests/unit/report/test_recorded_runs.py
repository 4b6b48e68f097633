"""The attribution of real runs: a tiny Qwen3-VL-MoE, trained by Megatron Bridge's own loop on a CPU.

`recorded/` holds seven measurements of the probe (megatron-core 0.16.1, megatron-bridge 0.3.1, torch
2.13), without the paths of the machine: a base, and one change against it each. The bytes are a CPU's;
what they test is that the component is told from measured bytes alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bisection.attribution import attribute
from bisection.measurement import Measurement
from bisection.regression import RegressionKind
from memory_models.breakdown import MIB, Category, Component

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Measurement:
    return Measurement.from_json(json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("change", "component", "category", "kind"),
    [
        ("experts-not-recomputed", Component.EXPERTS, Category.ACTIVATIONS, RegressionKind.ACTIVATIONS),
        ("attention-not-recomputed", Component.DECODER, Category.ACTIVATIONS, RegressionKind.ACTIVATIONS),
        ("more-pixels", Component.VISION, Category.ACTIVATIONS, RegressionKind.IMAGE_LOAD),
        ("mirrored-view", Component.VISION, Category.ACTIVATIONS, RegressionKind.IMAGE_LOAD),
        ("wide-projector", Component.PROJECTOR, Category.OPTIMIZER_STATES, RegressionKind.LAYOUT),
        ("expert-log", Component.EXPERTS, Category.ACTIVATIONS, RegressionKind.RETENTION),
    ],
)
def test_a_real_change_is_found_in_its_component(
    change: str, component: Component, category: Category, kind: RegressionKind
) -> None:
    regression = attribute(recorded("base"), recorded(change))
    assert (regression.component, regression.category, regression.kind) == (component, category, kind)
    assert regression.confidence == "strong"
    assert regression.delta_bytes is not None
    assert regression.delta_bytes > 40 * MIB


def test_a_real_run_against_itself_grew_nowhere() -> None:
    regression = attribute(recorded("base"), recorded("base"))
    assert regression.delta_bytes == 0
    assert regression.confidence == "weak"


def test_what_was_undone_shrinks_by_as_much_as_it_grew() -> None:
    there = attribute(recorded("base"), recorded("more-pixels"))
    back = attribute(recorded("more-pixels"), recorded("base"))
    assert there.delta_bytes is not None
    assert back.delta_bytes == -there.delta_bytes
    assert {c: -n for c, n in back.by_component.items()} == dict(there.by_component)
