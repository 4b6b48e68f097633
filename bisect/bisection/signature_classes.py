"""The signature classes of memory growth: what kind of growth two measurements show.

Each test reads measured facts (bytes by step, patches, reserved against allocated) and is told in
docs/reference/report.md. The choice of the component is `attribution`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from bisection.measurement import Measurement, Peak
from bisection.quantities import show_bytes
from bisection.regression import STATES, Origin, RegressionKind
from memory_models.breakdown import MIB, Category, Component

#: Below this a difference of a component is not called growth: repeated CPU runs of one state differ
#: by less than 0.001 MiB, and a GPU's allocator rounds each block up to 512 bytes.
SMALLEST_GROWTH_BYTES = MIB // 4
#: More patches or image tokens than this is another image load, not noise of the data order.
IMAGE_LOAD_SHARE = 0.05


def fragmentation_growth(before: Peak, after: Peak) -> int:
    """Bytes by which the gap between reserved and allocated grew, if that is most of the growth."""
    gap = (after.reserved_bytes - after.allocated_bytes) - (before.reserved_bytes - before.allocated_bytes)
    reserved = after.reserved_bytes - before.reserved_bytes
    return gap if gap >= SMALLEST_GROWTH_BYTES and reserved > 0 and gap > reserved / 2 else 0


def image_load(parent: Measurement, culprit: Measurement, before: Peak, after: Peak) -> list[str]:
    """Sentences on a larger image load at the steps of the peaks; empty if there is none."""
    sentences = []
    for name, words in (("patches", "image patches"), ("image_tokens", "image tokens")):
        old, new = (_at_step(m, peak.step, name) for m, peak in ((parent, before), (culprit, after)))
        if new > old * (1 + IMAGE_LOAD_SHARE):
            sentences.append(f"The step of the peak has {new} {words}, {old} before.")
    return sentences


def entry_of_load(load: Sequence[str], leader: Component, before: Peak, after: Peak) -> Component:
    """The component that a larger image load entered by.

    More patches enter by the vision tower; more image tokens from as many patches enter by the
    projector. The language model then grows with the tokens, often by more bytes, and is not to
    blame. It is, if it grew faster than the square of the entering component (the square, since
    unfused attention scores grow so): then the leader stays.
    """
    entry = Component.VISION if "patches" in load[0] else Component.PROJECTOR
    if leader is entry:
        return entry
    growth = {c: _activation_ratio(c, before, after) for c in (entry, leader)}
    return entry if growth[entry] > 1 and growth[leader] <= 1.1 * growth[entry] ** 2 else leader


def signature_class(
    parent: Measurement,
    culprit: Measurement,
    component: Component,
    category: Category,
    fragmented: bool,
    loaded: bool,
    origin: Origin,
) -> RegressionKind:
    """The first class, in the order of this list, whose evidence is there."""
    assert parent.peak is not None
    assert culprit.peak is not None
    delta = culprit.peak.allocated_bytes - parent.peak.allocated_bytes
    if fragmented:
        return RegressionKind.FRAGMENTATION
    if loaded:
        return RegressionKind.IMAGE_LOAD
    if category not in STATES and _retains(parent, culprit, delta):
        return RegressionKind.RETENTION
    if _only_first_step(parent, culprit, delta):
        return RegressionKind.FIRST_STEP
    if category in STATES:
        return RegressionKind.LAYOUT
    if component is Component.EMBEDDING_AND_LOSS:
        return RegressionKind.LOSS
    if component is Component.EXPERTS and _swing(culprit) - _swing(parent) > delta / 2:
        return RegressionKind.IMBALANCE
    if component is Component.RUNTIME and origin is Origin.PINS:
        return RegressionKind.ENVIRONMENT
    return RegressionKind.ACTIVATIONS


def steps_sentences(parent: Measurement, culprit: Measurement, kind: RegressionKind) -> list[str]:
    if kind is RegressionKind.RETENTION:
        return [
            f"After the last step {show_bytes(culprit.steps[-1].retained_bytes)} stay allocated, "
            f"{show_bytes(parent.steps[-1].retained_bytes)} before."
        ]
    if kind is RegressionKind.IMBALANCE:
        return [
            f"The peak swings by {show_bytes(_swing(culprit))} from step to step, "
            f"{show_bytes(_swing(parent))} before, at no larger image load: "
            "the tokens reach the experts less evenly."
        ]
    if kind is RegressionKind.FIRST_STEP:
        return ["Only the first step's peak grew; the later ones are as before."]
    return []


def _at_step(measurement: Measurement, step: int, name: str) -> int:
    """Of the peak's step where it is recorded, else the largest: a refused step is not recorded."""
    counts = {row.step: int(getattr(row, name)) for row in measurement.steps}
    return counts.get(step, max(counts.values(), default=0))


def _activation_ratio(component: Component, before: Peak, after: Peak) -> float:
    old, new = (
        sum(
            count
            for (owner, category), count in peak.breakdown.cells.items()
            if owner is component and category not in STATES
        )
        for peak in (before, after)
    )
    return new / old if old else float(new > 0) * 2.0


def _retains(parent: Measurement, culprit: Measurement, delta: int) -> bool:
    """More stays after a step: at once by half of the growth, or more with every step."""
    if delta <= 0 or not parent.steps or not culprit.steps:
        return False
    if culprit.steps[-1].retained_bytes - parent.steps[-1].retained_bytes > delta / 2:
        return True
    # The first step is left out: it makes the optimizer states, in every run.
    old, new = (_increases([s.retained_bytes for s in m.steps[1:]]) for m in (parent, culprit))
    return len(new) >= 2 and min(new) > 0 and sum(new) > 2 * max(0, sum(old)) and sum(new) > delta / 10


def _increases(values: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(values)]


def _only_first_step(parent: Measurement, culprit: Measurement, delta: int) -> bool:
    if delta <= 0 or len(parent.steps) < 2 or len(culprit.steps) < 2 or not culprit.peak:
        return False
    steady = max(s.peak_bytes for s in culprit.steps[1:]) - max(s.peak_bytes for s in parent.steps[1:])
    return culprit.peak.step == culprit.steps[0].step and steady < delta / 2


def _swing(measurement: Measurement) -> int:
    """Difference between the highest and the lowest peak of the steady steps."""
    peaks = [step.peak_bytes for step in measurement.steps[1:]]
    return max(peaks) - min(peaks) if peaks else 0
