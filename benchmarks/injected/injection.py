"""The shape of an injected regression: what is done to real code, and the right answer.

Values only. The cases are in `blind` (written by somebody who had not seen the classifier) and
`sighted`; running and scoring them is `benchmarks/injected_regressions.py`'s matter.

The kinds, as their words define them (`bisection.regression`): LAYOUT is more weights on the rank,
with the states that follow them; STATES is more bytes for as many weights (a gradient's or a moment's
dtype, master copies, what is trained); RETENTION is what stays allocated after a step and is no model
state; FIRST_STEP, only the first step's peak; IMAGE_LOAD, more patches or image tokens; LOSS, logits
and cross-entropy; IMBALANCE, tokens that reach the experts less evenly; ENVIRONMENT, in no module,
from what is pinned; ACTIVATIONS, kept from forward for backward or alive within an operation.
An edit outside of "train/" counts as a moved pin. As many processes train as the parallel sizes need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bisection.regression import RegressionKind
from memory_models.breakdown import Activity, Component


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One place of one file of what trains: ``old``, which stands there exactly once, becomes ``new``.

    ``path`` is below site-packages ("megatron/core/transformer/moe/experts.py"), or begins with
    "train/" for the demo's training repository ("train/vlm/model.py").
    """

    path: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """Raises ValueError unless ``old`` stands there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path} holds {text.count(self.old)} times, not once: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A regression between two trainings that differ in ``edits`` and ``overrides`` alone.

    Keys of ``overrides`` and ``base`` are dotted, as the demo's training takes them
    ("dataset.max_pixels", "model.recompute_modules").
    """

    name: str  #: e.g. "expert-output-kept"
    what: str  #: one sentence: what a developer did
    component: Component | None  #: the right answer for memory; None for a slow-down
    kind: RegressionKind
    activity: Activity | None = None  #: the right answer for a slow-down
    edits: tuple[Edit, ...] = ()  #: of the culprit only
    overrides: Mapping[str, Any] = field(default_factory=dict)  #: configuration of the culprit only
    base: Mapping[str, Any] = field(default_factory=dict)  #: configuration of both
