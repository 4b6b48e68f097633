"""From a belief in thousandths to a shade, and which steps a shade covers: one scale for all pictures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from bisection.report_parts import BeliefHistory, BeliefRow

#: Thousandths from which each shade on is used. About threefold from one to the next: a belief spread evenly
#: over sixty steps is still seen, and what narrows it to twenty shows.
SHADES = (4, 12, 36, 110, 330, 800)


@dataclass(frozen=True, kw_only=True)
class Span:
    """Neighbouring steps of one shade: positions ``first`` to ``last``, and the belief in all of them."""

    first: int
    last: int
    shade: int  #: from 1, the palest
    thousandths: int


def shade(thousandths: float) -> int:
    """0 where nothing is to be drawn."""
    return sum(thousandths >= least for least in SHADES)


def spans(history: BeliefHistory, row: BeliefRow) -> list[Span]:
    """The shaded stretches of one row, left to right; the good end stands for being bad all along."""
    cells = [(0, 0, row.good_end_is_bad)]
    suspects, columns = history.steps - 1, len(row.mass)
    for column, mass in enumerate(row.mass):
        # The first and the last step that share the column; positions count the good end.
        first, beyond = (-(-edge * suspects // columns) for edge in (column, column + 1))
        cells.append((first + 1, beyond, mass))
    merged = []
    for depth, group in groupby(cells, key=lambda cell: shade(cell[2])):
        parts = list(group)
        if depth:
            merged.append(
                Span(
                    first=parts[0][0],
                    last=parts[-1][1],
                    shade=depth,
                    thousandths=sum(mass for _, _, mass in parts),
                )
            )
    return merged
