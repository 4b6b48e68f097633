"""The request that a failed nightly makes: the same shape as what the API stores for a person's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisection.adapters.catalogue import Profile
from bisection.criteria import Criterion
from bisection.specification import BisectionSpec, Budget

VERSION = 1


def nightly_request(
    profile: Profile,
    *,
    good: str,
    bad: str,
    criterion: Criterion,
    overrides: Mapping[str, Any],
    gpu_hours: float | None,
) -> dict[str, Any]:
    """Every field that the API's normalised request has; a test compares the two."""
    return {
        "version": VERSION,
        "repository": profile.repository,
        "profile": profile.name,
        "good": good,
        "bad": bad,
        "overrides": dict(overrides),
        "criterion": criterion.to_json(),
        "budget": {"trials": Budget.trials, "gpu_hours": gpu_hours, "seconds": None},
        "parallel": None,
        "confidence": BisectionSpec.confidence,
        "seed": BisectionSpec.seed,
        "preview": False,
        "widen": False,
        "reuse": True,
        "prove": 0,
    }
