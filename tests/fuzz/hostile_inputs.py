"""Inputs drawn by hypothesis: texts and JSON that nobody means well, and genuine rows with a place spoilt."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

#: What broke a reader somewhere: numbers at every border, texts that mean something to somebody.
ODD_NUMBERS = [0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan")]
ODD_TEXTS = [
    "", " ", "\0", "\n", "\r\n", "\x1b[2J", "\u202e", "\ud800", "\U0001f600", "../../etc/passwd", "-rf",
    "--upload-pack=x", "${x}", "{python}", "<script>", "' OR 1=1 --", "null", "NaN", "1e999", "0x10", "=1+1",
    "2001-02-30", "9" * 5000, "a" * 5000, "e\u0301" * 50, "%s%n", "_target_", "__class__",
]  # fmt: skip
odd_texts = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=60))
numbers = st.one_of(st.sampled_from(ODD_NUMBERS), st.integers(), st.floats())
scalars = st.one_of(st.none(), st.booleans(), numbers, odd_texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(odd_texts, inner, max_size=5)),
    max_leaves=12,
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*at, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from _places(value[index], (*at, index))


@st.composite
def spoilt(draw: st.DrawFn, genuine: Any) -> Any:
    """A genuine row with one to three of its places removed, replaced, or given to one another."""
    row = copy.deepcopy(genuine)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(_places(row))))
        if not place:
            return draw(values)
        holder = row
        for step in place[:-1]:
            holder = holder[step]
        act = draw(st.sampled_from(["replace", "remove", "rename", "nest"]))
        if act == "remove":
            del holder[place[-1]]
        elif act == "rename" and isinstance(holder, dict):
            holder[draw(odd_texts)] = holder.pop(place[-1])
        elif act == "nest":
            holder[place[-1]] = [holder[place[-1]]]
        else:
            holder[place[-1]] = draw(values)
    return row


@st.composite
def spoilt_text(draw: st.DrawFn, *genuine: str) -> str:
    """Lines of genuine texts with odd ones between them, cut anywhere."""
    lines = [line for text in genuine for line in text.split("\n")]
    drawn = draw(st.lists(st.one_of(st.sampled_from(lines), odd_texts), max_size=25))
    joined = draw(st.sampled_from(["\n", "\r\n", "\r", " ", ""])).join(drawn)
    return joined[draw(st.integers(0, 5)) :]


def as_bytes(row: Any) -> bytes:
    """JSON as Python writes it, with NaN and half surrogate pairs where there are some."""
    return json.dumps(row).encode()
