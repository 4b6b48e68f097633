"""A dry run beside the memory model's estimate of the configuration that it resolved to.

Arithmetic only. Both are bytes by component and category at a peak; where they differ, what the one
holds and the other counts there is named, so that a reader sees which of the two is short of what.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory_models.breakdown import Category, Component, MemoryBreakdown
from memory_models.estimation import RankEstimate, estimate_rank
from memory_models.reading import Reading, read_bridge_config
from memory_models.shapes import ImageLoad
from memory_models.upstream import upstream_at
from workers.rank_files import RankFile

#: A difference beyond this share of its component is named.
NAMED_SHARE = 0.03
_SMALLEST_BYTES = 2**20
_MOST_NAMES = 3
_LAYER = re.compile(r"\b\d+\b")


@dataclass(frozen=True, kw_only=True)
class Named:
    """What makes up a cell on one side: bytes, and what they are."""

    bytes: int
    what: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cell of both peaks."""

    component: Component
    category: Category
    simulated_bytes: int
    estimated_bytes: int
    simulated: tuple[Named, ...] = ()  #: the largest of the tensors there, where the two differ
    estimated: tuple[Named, ...] = ()  #: the largest parts that the estimate counts there

    @property
    def difference_bytes(self) -> int:
        return self.simulated_bytes - self.estimated_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "component": self.component.value,
            "category": self.category.value,
            "simulated_bytes": self.simulated_bytes,
            "estimated_bytes": self.estimated_bytes,
            "difference_bytes": self.difference_bytes,
            "simulated": [dict(named.__dict__) for named in self.simulated],
            "estimated": [dict(named.__dict__) for named in self.estimated],
        }


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The estimate of the rank that was rehearsed, and both peaks cell by cell."""

    reading: Reading
    estimate: RankEstimate
    rows: tuple[Row, ...]


def read_job(
    configuration: Mapping[str, Any],
    world_size: int,
    pictures: Sequence[tuple[int, int]],
    versions: Mapping[str, str],
) -> Reading:
    """The job as the memory model reads it. Raises ValueError for what it cannot follow."""
    loads = [ImageLoad.of_pixels(height, width) for height, width in pictures]
    images = ImageLoad(patches=sum(load.patches for load in loads), images=len(loads))
    known = {name: re.sub(r"[^0-9.].*$", "", version) for name, version in versions.items()}
    return read_bridge_config(
        configuration, world_size=world_size, images=images, upstream=upstream_at(known)
    )


def beside(reading: Reading, file: RankFile, storages: Mapping[str, Any]) -> Beside:
    """Both peaks of one rank. The rank must have a peak."""
    assert file.peak is not None
    stage = file.rank * reading.job.layout.pipeline // file.world_size
    answer = estimate_rank(reading.job, stage)
    found = MemoryBreakdown.from_json([cell.model_dump() for cell in file.peak.breakdown])
    counted = answer.breakdown_on(file.rank)
    listed = storages.get("summits", {}).get(file.peak.phase, [])
    whole = found.by_component()
    rows = []
    for cell in sorted(set(found.cells) | set(counted.cells)):
        component, category = cell
        row = Row(
            component=component,
            category=category,
            simulated_bytes=found.cells.get(cell, 0),
            estimated_bytes=counted.cells.get(cell, 0),
        )
        if abs(row.difference_bytes) > max(_SMALLEST_BYTES, NAMED_SHARE * whole[component]):
            row = Row(
                component=component,
                category=category,
                simulated_bytes=row.simulated_bytes,
                estimated_bytes=row.estimated_bytes,
                simulated=_tensors(listed, component, category),
                estimated=_parts(answer, component, category),
            )
        rows.append(row)
    return Beside(reading=reading, estimate=answer, rows=tuple(rows))


def _tensors(
    listed: Sequence[Mapping[str, Any]], component: Component, category: Category
) -> tuple[Named, ...]:
    """Layers are alike: their numbers become N."""
    sums: Counter[str] = Counter()
    for row in listed:
        if (row["component"], row["category"]) == (component, category):
            sums[f"{_LAYER.sub('N', row['path'])}: {row['operation']}"] += row["bytes"] * row["count"]
    return tuple(Named(bytes=size, what=what) for what, size in sums.most_common(_MOST_NAMES))


def _parts(answer: RankEstimate, component: Component, category: Category) -> tuple[Named, ...]:
    parts = [part for part in answer.parts if (part.component, part.category) == (component, category)]
    parts.sort(key=lambda part: -part.bytes)
    return tuple(
        Named(bytes=part.bytes, what=f"{part.tensor} = {part.formula}") for part in parts[:_MOST_NAMES]
    )
