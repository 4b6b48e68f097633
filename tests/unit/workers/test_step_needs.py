"""How many steps a configuration needs, read from what a job wrote as its resolved configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bisection.adapters.profiles import Profile
from bisection.commits import State
from bisection.measurement import Measurement, Outcome, Step
from workers.step_needs import kept_to_its_steps


def profile(**fields: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "tiny",
            "repository": "nightly",
            "environment": {"kind": "interpreter", "python": "/env/bin/python"},
            "launch": [{"command": ["{python}", "train.py"]}],
            "steps": 3,
            **fields,
        }
    )


def run(steps: int, outcome: Outcome = Outcome.COMPLETED) -> Measurement:
    taken = tuple(
        Step(
            step=n,
            peak_bytes=1,
            retained_bytes=1,
            seconds=1.0,
            loss_tokens=1,
            image_tokens=1,
            padding_tokens=0,
        )
        for n in range(steps)
    )
    return Measurement(outcome=outcome, state=State(commit="a" * 40), steps=taken)


def config(**model: Any) -> bytes:
    return json.dumps({"model": model, "train": {"train_iters": 3}}).encode()


GRAPHS = config(cuda_graph_impl="local", cuda_graph_warmup_steps=3)


@pytest.mark.parametrize(
    ("content", "taken", "outcome", "warmup"),
    [
        (config(cuda_graph_impl="none", enable_cuda_graph=False), 3, Outcome.COMPLETED, 1),
        (GRAPHS, 5, Outcome.INVALID, 4),
        (GRAPHS, 6, Outcome.COMPLETED, 4),
        (config(external_cuda_graph=True), 5, Outcome.INVALID, 4),
        (config(vision_cuda_graph_impl="transformer_engine"), 5, Outcome.INVALID, 4),
        (config(cuda_graph_impl="local", cuda_graph_warmup_steps=8), 10, Outcome.INVALID, 9),
        (config(cuda_graph_impl="local", cuda_graph_warmup_steps="many"), 6, Outcome.COMPLETED, 4),
        (None, 3, Outcome.COMPLETED, 1),  # a script that writes none
        (b"[]", 3, Outcome.COMPLETED, 1),
        (b"not json", 3, Outcome.COMPLETED, 1),
        (b'{"model": 5}', 3, Outcome.COMPLETED, 1),
    ],
)
def test_a_run_too_short_for_its_configuration_is_invalid(
    content: bytes | None, taken: int, outcome: Outcome, warmup: int
) -> None:
    measured = kept_to_its_steps(run(taken), content, profile())
    assert (measured.outcome, measured.warmup_steps) == (outcome, warmup)
    if outcome is Outcome.INVALID:
        assert f"{taken} steps were taken" in measured.reason
        assert "Raise `steps` in the profile" in measured.reason


def test_a_failure_before_the_last_step_stays_what_it_is() -> None:
    assert (
        kept_to_its_steps(run(2, Outcome.OUT_OF_MEMORY), GRAPHS, profile()).outcome is Outcome.OUT_OF_MEMORY
    )


def test_a_profile_may_ask_for_a_longer_warm_up_and_must_leave_steps_to_be_timed() -> None:
    late = profile(steps=50, warmup_steps=30)
    assert kept_to_its_steps(run(50), config(), late).warmup_steps == 30
    assert late.digest != profile(steps=50).digest
    with pytest.raises(ValueError, match="at least 2 must be left to be timed"):
        profile(steps=31, warmup_steps=30)
