"""The sentences on what measured values show beside one step: a slow climb, further steps, a fall.

Words only, as in `narration`: every decision was made elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bisection.criteria import CriterionKind
from bisection.drift import Drift
from bisection.quantities import counted, show_bytes
from bisection.states import Line
from bisection.values import Values, worse

_SUBJECTS = {
    CriterionKind.THROUGHPUT: "The throughput falls",
    CriterionKind.METRIC_ABOVE: "The metric climbs",
    CriterionKind.METRIC_BELOW: "The metric falls",
}


def amount(kind: CriterionKind, value: float) -> str:
    """A value of the metric with its unit."""
    if kind is CriterionKind.THROUGHPUT:
        return f"{value:,.1f} useful tokens a second"
    return f"{value:g}" if kind.is_metric else show_bytes(round(value))


def overruled(values: Values, workers: Sequence[str]) -> str:
    """Whose values were read without the worker's offset, and how large that is. ``workers`` are parallel."""
    offsets = {workers[int(k)]: float(values.offsets[k]) for k in np.flatnonzero(values.overruled)}
    said = []
    for worker, offset in sorted(offsets.items()):
        more = "more" if offset * worse(values.kind) > 0 else "less"
        said.append(f"{worker} measures {amount(values.kind, abs(offset))} {more}")
    return f"At the same states {' and '.join(said)} than is usual; such values are counted without that."


def drift(line: Line, values: Values, climb: Drift) -> str:
    """So much over so many commits, what crosses the limit, and the largest step measured."""
    kind = values.kind
    subject = _SUBJECTS.get(kind, "The peak climbs")
    nearest, largest_at, largest = climb.largest
    near = largest_at - nearest
    apart = "from one commit to the next" if near == 1 else f"over {near} commits"
    between = counted(climb.upper - climb.lower, "commit")
    return (
        f"{subject} little by little, by {amount(kind, climb.rise)} over "
        f"{counted(climb.last - climb.first, 'commit')}: from {amount(kind, values.at(climb.start))} at "
        f"{line.name(climb.first)} to {amount(kind, values.at(climb.end))} at {line.name(climb.last)}. "
        f"No single commit carries it. Where the limit of {amount(kind, values.limit)} is crossed, between "
        f"{line.name(climb.lower)} and {line.name(climb.upper)} ({between}), the change is "
        f"{amount(kind, climb.crossing)}; the largest that was measured {apart} is "
        f"{amount(kind, largest)}, at {line.name(largest_at)}."
    )
