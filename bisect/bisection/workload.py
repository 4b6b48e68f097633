"""Whether two runs did alike work: what a step held, and which parts of the model it trained.

A speed is compared between equals only. A step that holds other work takes another time, however fast the
code is. Figures here are means of a step over the whole run, its warm-up included, since the data of that
are like any other's.

Not covered: how long the single sequences are beside their mean, and what a router makes of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bisection.measurement import Step, Work

Floats = NDArray[np.float64]

#: Less than this cannot pass for a slow-down: upstream's own harness calls 5 % one, and work that differs by
#: 1 % explains at most a fifth of that.
MATERIAL_SHARE = 0.01
#: Student's t, two-sided, at 99.9 %: by degrees of freedom. A bisection makes some hundred such comparisons.
_T_VALUES = (636.6, 31.6, 12.9, 8.61, 6.87, 5.96, 5.41, 5.04, 4.78, 4.59)
_T_MORE = ((15, 4.07), (20, 3.85), (30, 3.65), (60, 3.46))


@dataclass(frozen=True, kw_only=True)
class _Quantity:
    """Something that a step holds, and what it is a share of."""

    words: str
    names: tuple[str, ...]  #: fields of `Step`, summed
    whole: tuple[str, ...]  #: of what a share of `MATERIAL_SHARE` matters; fields of `Step`, summed
    follows_batching: bool = False  #: the same samples in other micro-batches may make another number of it


_USEFUL = ("loss_tokens", "image_tokens")
_QUANTITIES = (
    _Quantity(words="image patches", names=("patches",), whole=("patches",)),
    _Quantity(words="image tokens", names=("image_tokens",), whole=_USEFUL),
    _Quantity(words="loss tokens", names=("loss_tokens",), whole=_USEFUL),
    _Quantity(
        words="padding tokens",
        names=("padding_tokens",),
        whole=(*_USEFUL, "padding_tokens"),
        follows_batching=True,
    ),
    _Quantity(words="tokens in all", names=("tokens",), whole=("tokens",), follows_batching=True),
    _Quantity(words="sequences", names=("sequences",), whole=("sequences",)),
)
#: Not counted by every probe and script: where one side lacks them, nothing is known.
_OPTIONAL = frozenset({"patches", "tokens", "sequences"})


def differences(
    reference: Work, work: Work, *, of: str = "the good end", batched_alike: bool = True
) -> list[str]:
    """What makes the work another than the reference's, each with both figures; empty where nothing does.

    ``of`` says in words whose the reference is. Where the two are not ``batched_alike``, their padding may
    differ: that is what the batching costs, and no other work.
    """
    found = _trained_otherwise(reference, work, of)
    if reference.steps and work.steps:
        found += [
            words
            for quantity in _QUANTITIES
            if (batched_alike or not quantity.follows_batching)
            and (words := _held_otherwise(quantity, reference.steps, work.steps, of))
        ]
    return found


def _trained_otherwise(reference: Work, work: Work, of: str) -> list[str]:
    if not reference.trainable or not work.trainable:
        return []
    parts = sorted({*reference.trainable, *work.trainable})
    counts = [(part, reference.trainable.get(part, 0), work.trainable.get(part, 0)) for part in parts]
    return [
        f"{new:,} parameters of {part} are trained, where {of} trains {old:,}"
        for part, old, new in counts
        if abs(new - old) > MATERIAL_SHARE * max(old, new)
    ]


def _held_otherwise(quantity: _Quantity, old: Sequence[Step], new: Sequence[Step], of: str) -> str:
    before, after = (_column(steps, quantity.names) for steps in (old, new))
    if quantity.names[0] in _OPTIONAL and not (before.any() and after.any()):
        return ""
    whole = max(float(_column(steps, quantity.whole).mean()) for steps in (old, new))
    delta = abs(float(after.mean() - before.mean()))
    if delta <= MATERIAL_SHARE * whole or _by_shuffling(before, after):
        return ""
    return f"a step holds {_shown(after)} {quantity.words}, one of {of} {_shown(before)}"


def _by_shuffling(before: Floats, after: Floats) -> bool:
    """Whether the means may differ so since the same samples came in another order.

    Two tests, and either may refuse. Of two draws of steps from one population: means apart by at most
    t * sqrt(s^2 (1/n + 1/m)), s^2 pooled; shuffling without replacement differs less, so this errs towards
    comparing. And step by step, where the order is as it was: a share that all steps gained or lost alike
    (t * s / sqrt(n) of the logarithms of their ratios) is no shuffling, however much the steps differ.
    """
    freedom = len(before) + len(after) - 2
    if freedom < 1:
        return False
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (before, after))
    apart = abs(float(after.mean() - before.mean()))
    if apart > _t(freedom) * math.sqrt(squares / freedom * (1 / len(before) + 1 / len(after))):
        return False
    if len(before) != len(after) or min(before.min(), after.min()) <= 0:
        return True
    ratios = np.log(after / before)
    error = float(ratios.std(ddof=1)) / math.sqrt(len(ratios))
    return abs(float(ratios.mean())) <= _t(len(ratios) - 1) * error


def _t(freedom: int) -> float:
    if freedom <= len(_T_VALUES):
        return _T_VALUES[freedom - 1]
    # Of the next smaller entry of the table, which is the wider one.
    smaller = [value for limit, value in ((10, _T_VALUES[-1]), *_T_MORE) if limit <= freedom]
    return smaller[-1]


def _column(steps: Sequence[Step], names: Sequence[str]) -> Floats:
    """(steps,) the sum of these fields in each step."""
    return np.array([sum(getattr(step, name) for name in names) for step in steps], dtype=float)


def _shown(values: Floats) -> str:
    mean = float(values.mean())
    return f"{mean:,.0f}" if mean == round(mean) or mean >= 100 else f"{mean:,.1f}"
