"""The words for a regression: its signature class, its origin, and how much of what grew.

Values only; `attribution` decides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from memory_models.breakdown import Activity, Category, Component

#: What lasts from step to step: a model's states.
STATES = frozenset({Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATES})


class RegressionKind(StrEnum):
    """The signature class of the growth, from the most specific evidence that was measured."""

    IMAGE_LOAD = "image_load"  #: more patches or image tokens a step, and bytes that follow them
    FRAGMENTATION = "fragmentation"  #: reserved grew, allocated did not
    RETENTION = "retention"  #: what stays allocated after a step grew, and is no model state
    FIRST_STEP = "first_step"  #: only the first step's peak grew
    LAYOUT = "layout"  #: more weights on the rank: how the model is split, or how large it is
    STATES = "states"  #: more bytes for as many weights: gradients, moments, masters, what is trained
    GRAPH_CAPTURE = "graph_capture"  #: from the step on that captures CUDA graphs, at once
    LOSS = "loss"  #: logits and cross-entropy
    IMBALANCE = "imbalance"  #: the experts' peak swings from step to step at equal tokens
    ACTIVATIONS = "activations"  #: kept from forward for backward, or alive within an operation
    ENVIRONMENT = "environment"  #: in no module, after a commit that moved only pins or the lock
    THROUGHPUT = "throughput"  #: seconds, not bytes
    FAILURE = "failure"  #: it fails where its parent does not; no bytes or seconds say more


class Origin(StrEnum):
    """Where the change was written down, as far as the configuration and the pins tell."""

    CONFIGURATION = "configuration"  #: keys of the resolved configuration differ
    PINS = "pins"  #: only pinned repositories or locked packages moved; no resolved key differs
    CODE = "code"  #: no resolved key and no pin differs
    UNKNOWN = "unknown"  #: a configuration is missing


@dataclass(frozen=True, kw_only=True)
class CellDelta:
    """Signed growth of one cell between the two peaks."""

    component: Component
    category: Category
    delta_bytes: int


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What grew between the parent and the culprit. All deltas are culprit minus parent.

    Memory fields are None or empty for THROUGHPUT and FAILURE; time fields for all others.
    """

    kind: RegressionKind
    component: Component | None = None
    category: Category | None = None
    instant: str = ""  #: of the culprit's peak
    phase: str = ""  #: of the culprit's peak; for THROUGHPUT, the phase that grew most
    delta_bytes: int | None = None  #: of the whole peak (of reserved bytes for FRAGMENTATION)
    component_delta_bytes: int | None = None
    category_delta_bytes: int | None = None  #: of (component, category)
    share: float | None = None  #: of all growth, what the component has; 0..1
    by_component: Mapping[Component, int] = field(default_factory=dict)
    cells: tuple[CellDelta, ...] = ()  #: largest growth first
    activity: Activity | None = None
    delta_seconds: float | None = None  #: of a steady step
    activity_delta_seconds: float | None = None
    by_activity: Mapping[Activity, float] = field(default_factory=dict)
    explained_share: float | None = None  #: of the measured deltas by the model's; None without a model
    origin: Origin = Origin.UNKNOWN
    truncated: bool = False  #: a peak was cut off by a refusal: numbers are lower bounds
    confidence: str = "strong"  #: strong, moderate or weak: how sure the component is
    evidence: tuple[str, ...] = ()  #: sentences, in the order in which they convince
