"""What the runs of the grid measured, in a compact form that outlives them, and the estimates beside it.

A record holds one whole configuration, and of every case the keys that differ from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.probe_runs import Run
from memory_models.breakdown import MIB, Category, Component, MemoryBreakdown
from memory_models.estimation import RankEstimate, estimate_rank
from memory_models.job import TrainingJob
from memory_models.parameters import stage_weights
from memory_models.reading import read_bridge_config
from memory_models.shapes import ImageLoad

#: How near an estimate must come: of the total, and of each component that is larger than LARGE_BYTES.
TOTAL_TOLERANCE, COMPONENT_TOLERANCE, LARGE_BYTES = 0.02, 0.05, 64 * MIB
#: Sections of a configuration that an estimate reads.
_SECTIONS = ("model", "ddp", "optimizer", "train", "dataset", "dist", "mixed_precision", "peft")

Json = dict[str, Any]


def recorded(runs: Iterable[Run], measured_on: str) -> Json:
    """The record of these runs; the configuration of the first one is the one held whole."""
    base: Json = {}
    cases = []
    for run in runs:
        flat = _flat({name: run.configuration.get(name) for name in _SECTIONS})
        base = base or flat
        cases.append(
            {
                "name": run.case.name,
                "world_size": run.case.ranks,
                "patches_per_sample": _patches_per_sample(run),
                "changes": {key: value for key, value in flat.items() if base.get(key) != value},
                "without": sorted(set(base) - set(flat)),
                "ranks": [_rank(run, rank) for rank in range(run.case.ranks)],
            }
        )
    return {"measured": measured_on, "configuration": base, "cases": cases}


def cases_of(record: Json) -> list[Json]:
    """The cases with their whole configurations, nested as Bridge writes them."""
    cases = []
    for case in record["cases"]:
        flat = {**record["configuration"], **case["changes"]}
        config = _nested({key: value for key, value in flat.items() if key not in case["without"]})
        cases.append({**case, "configuration": config})
    return cases


def _flat(value: Mapping[str, Any], prefix: str = "") -> Json:
    found: Json = {}
    for key, held in value.items():
        if isinstance(held, Mapping):
            found |= _flat(held, f"{prefix}{key}/")
        elif held is not None:
            found[f"{prefix}{key}"] = held
    return found


def _nested(flat: Mapping[str, Any]) -> Json:
    config: Json = {}
    for path, value in flat.items():
        *sections, key = path.split("/")
        target = config
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    return config


def _patches_per_sample(run: Run) -> int:
    """Pictures are alike in every sample of a case. Of replicas each counts its own."""
    counting = [record for record in run.records if record["steps"][-1]["patches"]]
    patches = sum(record["steps"][-1]["patches"] for record in counting)
    count, rest = divmod(patches, run.configuration["train"]["global_batch_size"])
    assert rest == 0, f"{run.case.name}: {patches} patches are not alike in every sample"
    return int(count)


def _rank(run: Run, rank: int) -> Json:
    record = run.records[rank]
    peak = record["peak"]
    assert record["status"] == "completed", record["error"]
    return {
        "rank": rank,
        "rows": _rows_at_peak(run, rank),
        "peak": {key: peak[key] for key in ("step", "phase", "instant", "allocated_bytes")},
        "cells": {f"{row['component']} {row['category']}": row["bytes"] for row in peak["breakdown"]},
        "summits": {summit["phase"]: summit["allocated_bytes"] for summit in record["summits"]},
        "step_peaks": [step["peak_bytes"] for step in record["steps"]],
        "parameters": record["parameters"],
        "trainable": record["trainable"],
    }


def _rows_at_peak(run: Run, rank: int) -> dict[str, int]:
    """Decoder layer to the rows that its experts got in the step of the peak, one micro-batch a step."""
    step = run.records[rank]["peak"]["step"]
    steps = len(run.records[rank]["steps"])
    found = {}
    for path, counts in run.rows[rank].items():
        layer = re.search(r"layers\.(\d+)", path)
        if layer is not None and len(counts) == steps:
            found[layer.group(1)] = counts[step]
    return found


def job_of(case: Json, rank: Json, *, every_layer: bool = False) -> TrainingJob:
    """The job of a case, with the load that this rank's experts had in the layers alive at its peak.

    ``every_layer`` for the moment at which forward has ended.
    """
    images = ImageLoad(patches=case["patches_per_sample"])
    job = read_bridge_config(case["configuration"], world_size=case["world_size"], images=images).job
    alive = re.search(r"layers\.(\d+)", rank["peak"]["instant"])
    if job.layout.expert == 1 or alive is None or not rank["rows"]:
        return job
    assert job.text.experts is not None
    before = len(job.text.layers) if every_layer else int(alive.group(1))
    rows = [count for layer, count in rank["rows"].items() if int(layer) < before]
    layout = job.layout
    balanced = job.tokens * job.text.experts.top_k * layout.expert_tensor / layout.tensor
    load = sum(rows) / len(rows) / balanced
    return replace(job, routing=replace(job.routing, imbalance=load, force_balance=False))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One rank of a case: what was measured, and what the model says of it today."""

    case: str
    rank: int
    stage: int
    instant: str  #: as measured
    answer: RankEstimate
    measured: MemoryBreakdown
    estimated: MemoryBreakdown
    parameters_exact: bool

    @property
    def total_error(self) -> float:
        return self.estimated.total_bytes / self.measured.total_bytes - 1

    @property
    def component_errors(self) -> dict[Component, float]:
        """Of those that are large."""
        measured, estimated = self.measured.by_component(), self.estimated.by_component()
        large = [component for component, size in measured.items() if size > LARGE_BYTES]
        return {component: estimated[component] / measured[component] - 1 for component in large}

    @property
    def within(self) -> bool:
        worst = max((abs(error) for error in self.component_errors.values()), default=0.0)
        return (
            abs(self.total_error) <= TOTAL_TOLERANCE
            and worst <= COMPONENT_TOLERANCE
            and self.parameters_exact
        )

    def to_json(self) -> Json:
        return {
            "case": self.case,
            "rank": self.rank,
            "stage": self.stage,
            "instant": self.instant,
            "estimated_instant": self.answer.instant,
            "measured_bytes": self.measured.total_bytes,
            "estimated_bytes": self.estimated.total_bytes,
            "total_error": self.total_error,
            "component_errors": {part.value: error for part, error in self.component_errors.items()},
            "parameters_exact": self.parameters_exact,
            "within": self.within,
        }


def compare(case: Json) -> list[Comparison]:
    """Every rank of a case."""
    return [_compare(case, rank) for rank in case["ranks"]]


def _compare(case: Json, rank: Json) -> Comparison:
    job = job_of(case, rank)
    stage = rank["rank"] * job.layout.pipeline // case["world_size"]
    answer = estimate_rank(job, stage)
    return Comparison(
        case=case["name"],
        rank=rank["rank"],
        stage=stage,
        instant=rank["peak"]["instant"],
        answer=answer,
        measured=MemoryBreakdown(cells=cells_of(rank)),
        estimated=answer.breakdown_on(rank["rank"]),
        parameters_exact=_parameters_exact(job, stage, rank),
    )


def cells_of(rank: Json) -> dict[tuple[Component, Category], int]:
    """The measured cells of a rank's peak."""
    found = {}
    for name, size in rank["cells"].items():
        component, category = name.split(" ")
        found[Component(component), Category(category)] = int(size)
    return found


def _parameters_exact(job: TrainingJob, stage: int, rank: Json) -> bool:
    """Whether the real code built as many parameters in each component, and as many that learn."""
    weights = stage_weights(job, stage)
    for component in Component:
        held = [part for part in weights if part.component is component]
        if sum(part.elements for part in held) != rank["parameters"][component.value]:
            return False
        if sum(part.elements for part in held if part.trainable) != rank["trainable"][component.value]:
            return False
    return True
