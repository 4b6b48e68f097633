"""The signature classes of memory growth: what kind of growth two measurements show.

Each test reads measured facts (bytes by cell and by step, patches, tokens at the experts, reserved
against allocated) and is told in docs/reference/report.md. The choice of the component is
`attribution`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bisection.measurement import Measurement, Peak
from bisection.quantities import show_bytes
from bisection.regression import STATES, Origin, RegressionKind
from memory_models.breakdown import MIB, Category, Cell, Component

#: Below this a difference of a component is not called growth: repeated CPU runs of one state differ
#: by less than 0.001 MiB, and a GPU's allocator rounds each block up to 512 bytes.
SMALLEST_GROWTH_BYTES = MIB // 4
#: More patches or image tokens than this is another image load, not noise of the data order.
IMAGE_LOAD_SHARE = 0.05
#: Of a component's growth: where states make this much, they came first. Activations follow weights,
#: nothing makes weights follow activations.
STATES_SHARE = 0.1
#: Of a component's weights: more than this is a model that is larger on this rank, or split otherwise.
WEIGHTS_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What grew between two measurements that both have a peak."""

    parent: Measurement
    culprit: Measurement
    before: Peak  #: the parent's, in the phase of the culprit's where that is known
    after: Peak
    component: Component
    component_bytes: int
    origin: Origin
    changed_keys: Sequence[str] = ()  #: of the resolved configuration

    @property
    def peak_bytes(self) -> int:
        assert self.parent.peak is not None
        return self.after.allocated_bytes - self.parent.peak.allocated_bytes


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
            sentences.append(f"The step of the peak has {new:.0f} {words}, {old:.0f} before.")
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


def signature_class(growth: Growth, *, fragmented: bool, loaded: bool) -> RegressionKind:
    """The first class, in the order of this list, whose evidence is there."""
    if fragmented:
        return RegressionKind.FRAGMENTATION
    if loaded:
        return RegressionKind.IMAGE_LOAD
    states = _states_growth(growth)
    if sum(states.values()) >= max(STATES_SHARE * growth.component_bytes, SMALLEST_GROWTH_BYTES):
        return RegressionKind.LAYOUT if _more_weights(growth, states) else RegressionKind.STATES
    if _captures_graphs(growth):
        return RegressionKind.GRAPH_CAPTURE
    if _retains(growth):
        return RegressionKind.RETENTION
    if _only_first_step(growth):
        return RegressionKind.FIRST_STEP
    if growth.component is Component.EMBEDDING_AND_LOSS:
        return RegressionKind.LOSS
    if growth.component is Component.EXPERTS and _unevenly_loaded(growth):
        return RegressionKind.IMBALANCE
    if growth.component is Component.RUNTIME and growth.origin is Origin.PINS:
        return RegressionKind.ENVIRONMENT
    return RegressionKind.ACTIVATIONS


def kind_sentences(growth: Growth, kind: RegressionKind) -> list[str]:
    """The evidence of the class, for people."""
    parent, culprit = growth.parent, growth.culprit
    if kind is RegressionKind.LAYOUT:
        return [f"The weights of {growth.component} on this rank grew, and what follows them."]
    if kind is RegressionKind.STATES:
        return [
            f"{growth.component} holds as many bytes of weights as before, "
            "and more gradients or optimizer states for them."
        ]
    if kind in (RegressionKind.RETENTION, RegressionKind.GRAPH_CAPTURE):
        return [
            f"After the last step {show_bytes(culprit.steps[-1].retained_bytes)} stay allocated, "
            f"{show_bytes(parent.steps[-1].retained_bytes)} before."
        ]
    if kind is RegressionKind.IMBALANCE:
        told = [
            f"The busiest {who} gets {loads[1]:.2f} times the mean of the tokens, {loads[0]:.2f} before."
            for who, name in (("rank", "rank_load"), ("expert", "expert_load"))
            if (loads := _loads(growth, name)) is not None
        ]
        if told:
            return told
        return [
            f"The peak swings by {show_bytes(_swing(culprit))} from step to step, "
            f"{show_bytes(_swing(parent))} before, at no larger image load: "
            "the tokens reach the experts less evenly."
        ]
    if kind is RegressionKind.FIRST_STEP:
        return ["Only the first step's peak grew; the later ones are as before."]
    return []


def _at_step(measurement: Measurement, step: int, name: str) -> float:
    """Of the peak's step where it is recorded, else the largest: a refused step is not recorded."""
    counts = {row.step: float(getattr(row, name)) for row in measurement.steps}
    return counts.get(step, max(counts.values(), default=0.0))


def _activation_ratio(component: Component, before: Peak, after: Peak) -> float:
    old, new = (_without_states(peak.breakdown.cells, component) for peak in (before, after))
    return new / old if old else float(new > 0) * 2.0


def _without_states(cells: Mapping[Cell, int], component: Component) -> int:
    return sum(count for (owner, kind), count in cells.items() if owner is component and kind not in STATES)


def _kept_growth(growth: Growth) -> dict[Cell, int] | None:
    """Cells of what stays after the last step, culprit minus parent; None where nobody recorded them."""
    before, after = growth.parent.retained, growth.culprit.retained
    return after[-1].breakdown.minus(before[-1].breakdown) if before and after else None


def _states_growth(growth: Growth) -> dict[Category, int]:
    """Of the component. States last, so what stays after a step tells them best: at two peaks one
    may miss the optimizer's, which the first step makes.
    """
    cells = _kept_growth(growth)
    if cells is None:
        cells = growth.after.breakdown.minus(growth.before.breakdown)
    return {category: cells.get((growth.component, category), 0) for category in STATES}


def _more_weights(growth: Growth, states: Mapping[Category, int]) -> bool:
    had = growth.before.breakdown.cells.get((growth.component, Category.PARAMETERS), 0)
    return states[Category.PARAMETERS] > WEIGHTS_SHARE * had


def _kept_besides_states(growth: Growth) -> int:
    """Bytes that stay after the last step and are no state: culprit minus parent, all components."""
    cells = _kept_growth(growth)
    if cells is not None:
        return sum(count for (_, category), count in cells.items() if category not in STATES)
    at_peak = growth.after.breakdown.minus(growth.before.breakdown)
    states = sum(count for (_, category), count in at_peak.items() if category in STATES)
    last = [measurement.steps[-1].retained_bytes for measurement in (growth.parent, growth.culprit)]
    return last[1] - last[0] - states


def _retains(growth: Growth) -> bool:
    """More stays after a step: at once by half of the growth, or more with every step."""
    parent, culprit, delta = growth.parent, growth.culprit, growth.peak_bytes
    if delta <= 0 or not parent.steps or not culprit.steps:
        return False
    if _kept_besides_states(growth) > delta / 2:
        return True
    # The first step is left out: it makes the optimizer states, in every run.
    old, new = (_increases([s.retained_bytes for s in m.steps[1:]]) for m in (parent, culprit))
    return len(new) >= 2 and min(new) > 0 and sum(new) > 2 * max(0, sum(old)) and sum(new) > delta / 10


def _captures_graphs(growth: Growth) -> bool:
    """What stays grew on a GPU: with a changed key of CUDA graphs, or at one step after the first."""
    parent, culprit, delta = growth.parent, growth.culprit, growth.peak_bytes
    if culprit.device != "cuda" or delta <= 0 or not parent.steps or not culprit.steps:
        return False
    if any("cuda_graph" in key for key in growth.changed_keys):
        return _kept_besides_states(growth) > delta / 2
    old, new = (_increases([s.retained_bytes for s in m.steps]) for m in (parent, culprit))
    jumps = [more - (old[at] if at < len(old) else 0) for at, more in enumerate(new)]
    return sum(jump > delta / 2 for jump in jumps) == 1 and sum(jump > delta / 10 for jump in jumps) == 1


def _increases(values: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise(values)]


def _only_first_step(growth: Growth) -> bool:
    parent, culprit, delta = growth.parent, growth.culprit, growth.peak_bytes
    if delta <= 0 or len(parent.steps) < 2 or len(culprit.steps) < 2:
        return False
    steady = max(s.peak_bytes for s in culprit.steps[1:]) - max(s.peak_bytes for s in parent.steps[1:])
    return growth.after.step == culprit.steps[0].step and steady < delta / 2


def _loads(growth: Growth, name: str) -> tuple[float, float] | None:
    """Of the busiest against the mean, at the steps of the two peaks; None where one is not known."""
    old = _at_step(growth.parent, growth.before.step, name)
    new = _at_step(growth.culprit, growth.after.step, name)
    return (old, new) if old and new else None


def _unevenly_loaded(growth: Growth) -> bool:
    """The spread of the tokens explains half of the growth; where they were not counted, by the swing.

    What is kept for backward follows the tokens of the busiest rank. What is there within an
    operation follows those of the busiest expert where experts run one after the other, else the
    rank's too.
    """
    ranks = _loads(growth, "rank_load")
    if ranks is None:
        return _swing(growth.culprit) - _swing(growth.parent) > growth.peak_bytes / 2
    experts = _loads(growth, "expert_load") or ranks
    cells = growth.before.breakdown.cells
    kept, passing = (
        cells.get((Component.EXPERTS, category), 0) for category in (Category.ACTIVATIONS, Category.TEMPORARY)
    )
    explained = (ranks[1] / ranks[0] - 1) * kept + (experts[1] / experts[0] - 1) * passing
    return explained > max(growth.component_bytes / 2, SMALLEST_GROWTH_BYTES)


def _swing(measurement: Measurement) -> int:
    """Difference between the highest and the lowest peak of the steady steps."""
    peaks = [step.peak_bytes for step in measurement.steps[1:]]
    return max(peaks) - min(peaks) if peaks else 0
