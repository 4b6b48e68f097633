"""The storages that the grid's listed runs found alive, in a compact form that outlives them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.probe_runs import Run

#: Smaller storages are summed by component and category: they hold counters and sums.
SMALLEST_BYTES = 1024
_STATES = frozenset({"parameters", "gradients", "optimizer_states"})

Json = dict[str, Any]
#: Component, category, phase, path (layers as *), operation.
Origin = tuple[str, str, str, str, str]


def listed(runs: Iterable[Run], measured_on: str) -> Json:
    """The storages of every listed run, those of equal layers summed; states are left out."""
    return {
        "measured": measured_on,
        "cases": [
            {
                "name": run.case.name,
                "ranks": [
                    {
                        "start_of_backward": rows_of(storages["start_of_backward"]),
                        "peak": rows_of(storages["summits"][record["peak"]["phase"]]),
                    }
                    for record, storages in zip(run.records, run.storages, strict=True)
                ],
            }
            for run in runs
            if run.storages
        ],
    }


def rows_of(storages: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """[component, category, phase, path, operation, storages, bytes of all of them], the largest first.

    Storages of one kind are alike in size too, but for those of experts, which work on as many rows as come.
    """
    counts: Counter[tuple[Origin, int]] = Counter()
    sizes: Counter[tuple[Origin, int]] = Counter()
    for row in storages:
        # A weight's own gradient, until it is added to the buffer, is no state.
        own_gradient = row["category"] == "gradients" and row["phase"] == "backward"
        if row["category"] in _STATES and not own_gradient:
            continue
        size = row["bytes"]
        where = (row["phase"], general(row["path"]), row["operation"].removeprefix("aten."))
        if size < SMALLEST_BYTES:
            where, size = ("", "small", ""), 0
        elif "local_experts" in where[1]:
            size = 0
        kind = (row["component"], row["category"], *where), size
        counts[kind] += row["count"]
        sizes[kind] += row["bytes"] * row["count"]
    return [[*kind[0], counts[kind], size] for kind, size in sizes.most_common()]


def general(path: str) -> str:
    """The path with a star for each number, and without what all decoder paths begin with."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path).removeprefix("language_model.decoder.")
