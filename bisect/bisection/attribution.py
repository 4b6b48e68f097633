"""Where a regression lives: which component grew, in which category, at which instant.

Told from measured bytes (or seconds) alone; the configuration and the pins only say where the
cause was written down, and the memory model only how much of the growth it understands.
No judging of good and bad here, no prose about commits: that is `criteria` and `report`.

The rule for two peaks. Like is compared with like: the culprit's peak with the parent's highest
instant of the same phase.

* If both peaks fall into the same phase, that is the parent's peak.
* If the peak moved to another phase, the component is chosen, and its growth told, against the
  parent's summit of that phase; the totals stay those of the two peaks.
* Where no summits were recorded, what lives only within an operation or a phase (TEMPORARY and
  COMMUNICATION) was caught at one instant and missed at the other: it says where the peak moved,
  not what grew. It stays in the totals, and is left out of the choice of the component, unless
  nothing else grew.
* A trial that crashed, or was not what was asked, has the bytes of what ran: that is told, and the
  claim is lowered by one word.
* A culprit that was stopped by a refused allocation has a truncated peak: it is only used where no
  whole one exists, every number is then a lower bound, and the claim is lowered by one word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bisection.criteria import CriterionKind
from bisection.measurement import Measurement, Outcome, Peak
from bisection.quantities import show_bytes
from bisection.regression import CellDelta, Origin, Regression, RegressionKind
from bisection.signature_classes import (
    SMALLEST_GROWTH_BYTES,
    Growth,
    entry_of_load,
    fragmentation_growth,
    image_load,
    kind_sentences,
    signature_class,
)
from bisection.time_attribution import TimeDelta, compare_time
from memory_models.breakdown import Category, Cell, Component

__all__ = [
    "CellDelta",
    "ModelDelta",
    "Origin",
    "Regression",
    "RegressionKind",
    "attribute",
    "choose_measurement",
    "explained_share",
    "is_partial",
    "is_truncated",
    "is_whole",
]

#: Two components whose growth differs by less than this share are called a tie.
TIE_SHARE = 0.10
_PASSING = frozenset({Category.TEMPORARY, Category.COMMUNICATION})


class ModelDelta(Protocol):
    """What a comparison of two estimates must offer: `memory_models.comparison.Comparison` does."""

    @property
    def delta(self) -> Mapping[Cell, int]: ...


def choose_measurement(measurements: Sequence[Measurement]) -> Measurement | None:
    """The one to compare: a whole peak before a truncated one, then more steps, then the later.

    Whole is one that completed; the search measures a culprit again without the limit for this.
    """
    with_peak = [(index, m) for index, m in enumerate(measurements) if m.peak is not None]
    if not with_peak:
        return measurements[-1] if measurements else None
    return max(with_peak, key=lambda pair: (is_whole(pair[1]), len(pair[1].steps), pair[0]))[1]


def is_whole(measurement: Measurement) -> bool:
    return measurement.outcome is Outcome.COMPLETED and measurement.peak is not None


def is_truncated(measurement: Measurement) -> bool:
    """A peak cut off by a refused allocation; other failures refuse nothing."""
    refused = measurement.outcome is Outcome.OUT_OF_MEMORY or measurement.oom is not None
    return refused and measurement.peak is not None


def is_partial(measurement: Measurement) -> bool:
    """A peak of a trial that crashed, ran out of time or was not what was asked."""
    return measurement.peak is not None and not (is_whole(measurement) or is_truncated(measurement))


def attribute(
    parent: Measurement,
    culprit: Measurement,
    *,
    comparison: ModelDelta | None = None,
    criterion: CriterionKind = CriterionKind.OUT_OF_MEMORY,
    changed_keys: Sequence[str] | None = None,
    pins_moved: bool = False,
) -> Regression:
    """The regression between two measured states.

    ``changed_keys`` are the differing keys of the resolved configurations (None: not known).
    They never decide the component. Raises ValueError if the measurements were made on different
    devices: their bytes do not compare.
    """
    if parent.device != culprit.device:
        raise ValueError(
            f"the parent was measured on {parent.device!r} and the culprit on {culprit.device!r}: "
            "measure both on one kind of device"
        )
    origin = _origin(changed_keys, pins_moved)
    if criterion is CriterionKind.THROUGHPUT:
        return _throughput(compare_time(parent, culprit), origin)
    if criterion is CriterionKind.CRASH or parent.peak is None or culprit.peak is None:
        return _failure(parent, culprit, origin)
    return _memory(parent, culprit, parent.peak, culprit.peak, comparison, origin, changed_keys or ())


def explained_share(measured: Mapping[Component, int], estimated: Mapping[Cell, int]) -> float | None:
    """1 - sum over components of |measured - estimated| / sum of |measured|, floored at 0.

    1: the model foresees every component's growth; 0: it foresees none, or the wrong one. None
    if nothing measured differs.
    """
    total = sum(abs(count) for count in measured.values())
    if total == 0:
        return None
    by_component = dict.fromkeys(Component, 0)
    for (component, _), count in estimated.items():
        by_component[component] += count
    missed = sum(abs(measured.get(component, 0) - by_component[component]) for component in Component)
    return max(0.0, 1.0 - missed / total)


def _origin(changed_keys: Sequence[str] | None, pins_moved: bool) -> Origin:
    if changed_keys is None:
        return Origin.UNKNOWN
    if changed_keys:
        return Origin.CONFIGURATION
    return Origin.PINS if pins_moved else Origin.CODE


_ORIGIN_SENTENCES = {
    Origin.CONFIGURATION: "The resolved configuration differs between the two.",
    Origin.PINS: "Only pins or the lock moved and no key of the resolved configuration differs: "
    "the cause lies in what is pinned.",
    Origin.CODE: "No key of the resolved configuration and no pin differs: the cause lies in the code.",
    Origin.UNKNOWN: "The resolved configurations were not both recorded, so they were not compared.",
}


def _memory(
    parent: Measurement,
    culprit: Measurement,
    before: Peak,
    after: Peak,
    comparison: ModelDelta | None,
    origin: Origin,
    changed_keys: Sequence[str],
) -> Regression:
    cells = after.breakdown.minus(before.breakdown)
    by_component = _sum_by_component(cells)
    like = _like_peak(parent, before, after)
    grown = after.breakdown.minus(like.breakdown)
    growths = _sum_by_component(grown)
    counted = _counted(grown, moved=like.phase != after.phase)
    ranking = sorted(_sum_by_component(counted).items(), key=lambda pair: -pair[1])
    leader, growth = ranking[0]
    truncated = is_truncated(parent) or is_truncated(culprit)
    partial = [
        f"{who}'s trial ended {m.outcome.value.replace('_', ' ')}"
        for who, m in (("The parent", parent), ("The culprit", culprit))
        if is_partial(m)
    ]
    fragmentation = fragmentation_growth(before, after)
    load = image_load(parent, culprit, like, after)
    component = leader
    if fragmentation:
        component = Component.RUNTIME
    elif load:
        component = entry_of_load(load, leader, like, after)
    ties = [
        other
        for other, count in ranking
        if component is leader is not other and growth - count < TIE_SHARE * growth
    ]
    component_growth = growths[component]
    category = _leading_category(counted, component)
    facts = Growth(
        parent=parent,
        culprit=culprit,
        before=like,
        after=after,
        component=component,
        component_bytes=component_growth,
        origin=origin,
        changed_keys=changed_keys,
    )
    kind = signature_class(facts, fragmented=bool(fragmentation), loaded=bool(load))
    if fragmentation:
        category, component_growth = Category.FRAGMENTATION, fragmentation
    positive = sum(count for count in growths.values() if count > 0)
    share = min(1.0, component_growth / positive) if positive > 0 and not fragmentation else None
    small = component_growth < SMALLEST_GROWTH_BYTES
    # A larger image load spreads over every component: the entry's share is small by nature.
    scattered = share is not None and share < 0.5 and not load
    doubts = truncated + bool(partial) + bool(ties) + scattered + 2 * small
    evidence = [
        _peaks_sentence(before, after),
        *(f"{words}: its peak is that of what ran, and may not be the job's." for words in partial),
        *_limits_sentences(before, like, after, truncated=truncated, small=small),
        *_choice_sentences(component, leader, growth, ties, fragmentation),
        *load,
        *kind_sentences(facts, kind),
        _ORIGIN_SENTENCES[origin],
    ]
    return Regression(
        kind=kind,
        component=component,
        category=category,
        instant=after.instant,
        phase=after.phase,
        delta_bytes=(after.reserved_bytes - before.reserved_bytes)
        if fragmentation
        else after.allocated_bytes - before.allocated_bytes,
        component_delta_bytes=component_growth,
        category_delta_bytes=fragmentation or grown.get((component, category), 0),
        share=share,
        by_component=by_component,
        cells=tuple(
            CellDelta(component=cell[0], category=cell[1], delta_bytes=count)
            for cell, count in sorted(cells.items(), key=lambda pair: (-pair[1], pair[0]))
        ),
        explained_share=explained_share(by_component, comparison.delta) if comparison else None,
        origin=origin,
        truncated=truncated,
        confidence=("strong", "moderate", "weak")[min(doubts, 2)],
        evidence=tuple(evidence),
    )


def _like_peak(parent: Measurement, before: Peak, after: Peak) -> Peak:
    """The parent's highest instant in the phase of the culprit's peak; its peak where none is known."""
    if before.phase == after.phase:
        return before
    return next((summit for summit in parent.summits if summit.phase == after.phase), before)


def _leading_category(cells: Mapping[Cell, int], component: Component) -> Category:
    own = {category: count for (owner, category), count in cells.items() if owner is component}
    return max(own, key=lambda category: own[category]) if own else Category.ACTIVATIONS


def _limits_sentences(before: Peak, like: Peak, after: Peak, *, truncated: bool, small: bool) -> list[str]:
    sentences = []
    if truncated:
        sentences.append(
            "The run was stopped by a refused allocation and no whole peak was measured: "
            "the growth told here is a lower bound."
        )
    if like.phase != after.phase:
        sentences.append(
            f"The peak moved from {before.phase} to {after.phase}; temporary and communication "
            "buffers are left out of the choice of the component."
        )
    elif like is not before:
        sentences.append(
            f"The peak moved from {before.phase} to {after.phase}. Components are compared within "
            f"{after.phase}, where {show_bytes(like.allocated_bytes)} were the most before "
            f"({like.instant or like.phase})."
        )
    if small:
        sentences.append("No component grew by more than the measurement's own grain.")
    return sentences


def _choice_sentences(
    component: Component, leader: Component, growth: int, ties: Sequence[Component], fragmentation: int
) -> list[str]:
    if fragmentation:
        return [
            f"Reserved grew by {show_bytes(fragmentation)} more than allocated: "
            "the allocator holds bytes that it cannot use."
        ]
    if component is not leader:
        return [
            f"{leader} grew by more bytes ({show_bytes(growth)}), "
            "but no more than a larger image load explains."
        ]
    if ties:
        return [f"{' and '.join(ties)} grew by nearly as much; {component} is named because it grew most."]
    return []


def _sum_by_component(cells: Mapping[Cell, int]) -> dict[Component, int]:
    sums = dict.fromkeys(Component, 0)
    for (component, _), count in cells.items():
        sums[component] += count
    return sums


def _counted(cells: Mapping[Cell, int], *, moved: bool) -> Mapping[Cell, int]:
    """The cells that may choose the component: see the rule in the module's header."""
    if not moved:
        return cells
    lasting = {cell: count for cell, count in cells.items() if cell[1] not in _PASSING}
    return lasting if max(lasting.values(), default=0) >= SMALLEST_GROWTH_BYTES else cells


def _peaks_sentence(before: Peak, after: Peak) -> str:
    return (
        f"The peak is {show_bytes(after.allocated_bytes)} on rank {after.rank}, step {after.step}, "
        f"{after.instant or after.phase}; it was {show_bytes(before.allocated_bytes)} on rank {before.rank}, "
        f"step {before.step}, {before.instant or before.phase}."
    )


def _throughput(delta: TimeDelta, origin: Origin) -> Regression:
    return Regression(
        kind=RegressionKind.THROUGHPUT,
        activity=delta.activity,
        phase=delta.phase,
        instant=delta.phase,
        delta_seconds=delta.step_seconds,
        activity_delta_seconds=delta.activity_seconds,
        by_activity=delta.by_activity,
        share=delta.share,
        origin=origin,
        confidence=delta.confidence,
        evidence=(*delta.evidence, _ORIGIN_SENTENCES[origin]),
    )


def _failure(parent: Measurement, culprit: Measurement, origin: Origin) -> Regression:
    signature = culprit.signature or culprit.reason or culprit.outcome.value
    passed = parent.outcome is Outcome.COMPLETED
    came_to = "passes" if passed else f"ends otherwise: {parent.outcome.value.replace('_', ' ')}"
    if passed and culprit.outcome is Outcome.COMPLETED and culprit.reason and parent.reason:
        # A command of somebody's own, which says by a number or its exit code how it went.
        evidence = [f"At the culprit {culprit.reason}; at its parent {parent.reason}."]
    else:
        evidence = [f"It fails with {signature}; its parent {came_to}."]
    component: Component | None = None
    if culprit.oom is not None:
        evidence.append(
            f"The allocator refused {show_bytes(culprit.oom.requested_bytes)} in {culprit.oom.component}, "
            f"{culprit.oom.phase}; where a run stops is not always where its bytes went."
        )
        component = Component(culprit.oom.component) if culprit.oom.component in list(Component) else None
    return Regression(
        kind=RegressionKind.FAILURE,
        component=component,
        phase=culprit.oom.phase if culprit.oom else "",
        origin=origin,
        truncated=culprit.oom is not None,
        confidence="weak" if component else "strong",
        evidence=(*evidence, _ORIGIN_SENTENCES[origin]),
    )
