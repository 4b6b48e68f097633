"""Dry runs of Qwen3-VL-30B-A3B and 235B-A22B at full size, beside arithmetic and beside the estimate.

usage: dry_run.py --python PYTHON --folder FOLDER [--only WORD] [--json]

PYTHON is an interpreter with Megatron Bridge, as `scripts/with_megatron.sh` makes one; finished runs in
FOLDER are not made again. Each case is one row, that of its worst pipeline stage. "seconds" count from
where all is imported; "host_bytes" is the most memory of the run's largest process. It ends with 1 if a
parameter is miscounted, or parameters, gradients or optimizer states hold less than arithmetic says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.probe_records import cells_of
from memory_models.breakdown import Category, Component, MemoryBreakdown
from memory_models.estimation import RankEstimate, estimate_rank
from memory_models.parameters import stage_weights
from memory_models.reading import read_bridge_config
from memory_models.shapes import ImageLoad
from memory_models.upstream import upstream_at

ROOT = Path(__file__).parents[1]
PROBE = ROOT / "workers" / "probe"
JOB = PROBE / "firstbad_probe" / "dry_run" / "job.py"
MODELS = ROOT / "tests" / "integration" / "models"
VERSIONS = {"megatron-bridge": "0.3.1", "megatron-lm": "0.16.1"}
SIDE, PATCH = 1024, 16
SECONDS = 1800

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    model: str
    layout: str
    world: int
    overrides: Mapping[str, Any]
    recompute: str = "none"
    profile: str = "production"
    image: bool = True

    @property
    def name(self) -> str:
        return " ".join(
            (self.model, self.layout, self.recompute, self.profile, "" if self.image else "text")
        ).strip()


_LAYOUTS = {
    "EP8": {"expert_model_parallel_size": 8},
    "TP4 EP16 ETP1": {
        "tensor_model_parallel_size": 4,
        "sequence_parallel": True,
        "expert_model_parallel_size": 16,
        "expert_tensor_parallel_size": 1,
    },
    "PP2 EP8": {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 8},
    "TP2 EP8 ETP2": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "expert_model_parallel_size": 8,
        "expert_tensor_parallel_size": 2,
    },
}
_RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {
        "recompute_granularity": "selective",
        "recompute_modules": ["core_attn", "layernorm", "moe_act"],
    },
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}
_WORLDS = {"qwen3_vl_30b_a3b": 64, "qwen3_vl_235b_a22b": 256}
#: For the profile that keeps every score of attention: enough layers to see what one adds.
_FEW_LAYERS = 4


def cases() -> Iterator[Case]:
    for model, world in _WORLDS.items():
        for layout, settings in _LAYOUTS.items():
            for recompute in ("none", "selective"):
                changes = {**settings, **_RECOMPUTE[recompute]}
                yield Case(model=model, layout=layout, world=world, overrides=changes, recompute=recompute)
        full = {**_LAYOUTS["EP8"], **_RECOMPUTE["full"]}
        yield Case(model=model, layout="EP8", world=world, overrides=full, recompute="full")
        yield Case(model=model, layout="EP8", world=world, overrides=full, recompute="full", image=False)
        few = {**_LAYOUTS["EP8"], "num_layers": _FEW_LAYERS}
        yield Case(model=model, layout="EP8", world=world, overrides=few, profile="unfused")


def run(python: Path, folder: Path, case: Case) -> Path:
    """The folder of the case's records, made if it is not there."""
    output = folder / case.name.replace(" ", "-")
    if list(output.glob("rank-*.json")):
        return output
    output.mkdir(parents=True, exist_ok=True)
    orders = {"images": [[SIDE, SIDE]] if case.image else [], "layers": case.profile}
    with (output / "log.txt").open("w") as log:
        subprocess.run(
            [
                python,
                "-m",
                "firstbad_probe",
                JOB,
                MODELS / f"{case.model}.json",
                *(f"model.{key}={json.dumps(value)}" for key, value in case.overrides.items()),
            ],
            cwd=output,
            env={
                **os.environ,
                "PYTHONPATH": str(PROBE),
                "OMP_NUM_THREADS": "1",
                "CUDA_DEVICE_MAX_CONNECTIONS": "1",
                "RANK": "0",
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(case.world),
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "1",  # nothing listens, nothing connects
                "FIRSTBAD_DEVICE": "dry_run",
                "FIRSTBAD_DRY_RUN": json.dumps(orders),
                "FIRSTBAD_MINIMUM_STEPS": "2",
                "FIRSTBAD_PROBE_DIRECTORY": str(output),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=SECONDS,
        )
    return output


def row(case: Case, output: Path) -> Json:
    told: Json = {
        "model": case.model,
        "layout": case.layout,
        "recompute": case.recompute,
        "profile": case.profile,
        "image": case.image,
    }
    records = [json.loads(path.read_text()) for path in output.glob("rank-*.json")]
    failed = [record for record in records if record["status"] != "completed"]
    if failed or not records:
        error = failed[0]["error"] if failed else {"message": "no record: see log.txt"}
        return {**told, "failed": error["message"], "peak_bytes": None}
    record = max(records, key=lambda one: one["peak"]["allocated_bytes"])
    costs = [json.loads(path.read_text()) for path in output.glob("rehearsal-*.json")]
    answer = _estimate(case, output, record)
    found = MemoryBreakdown(
        cells=cells_of(
            {
                "cells": {
                    f"{cell['component']} {cell['category']}": cell["bytes"]
                    for cell in record["peak"]["breakdown"]
                }
            }
        )
    )
    estimated = answer.breakdown_on(record["rank"])
    return {
        **told,
        "rank": record["rank"],
        "instant": record["peak"]["instant"],
        "peak_bytes": record["peak"]["allocated_bytes"],
        "by_component": _by_component(found),
        "seconds": sum(cost["seconds"] for cost in costs),
        "processor_seconds": sum(cost["processor_seconds"] for cost in costs),
        "host_bytes": max(cost["host_bytes"] for cost in costs),
        "estimate_instant": answer.instant,
        "estimate_bytes": answer.allocated_bytes,
        "estimate_by_component": _by_component(estimated),
        "arithmetic": _arithmetic(answer, record, found, estimated),
    }


def _estimate(case: Case, output: Path, record: Json) -> RankEstimate:
    configuration = json.loads((output / "config.json").read_text())
    if case.profile == "production":  # the fake world answers to gloo; what it stands for is NCCL
        configuration["dist"]["distributed_backend"] = "nccl"
    job = read_bridge_config(
        configuration,
        world_size=case.world,
        images=ImageLoad(patches=(SIDE // PATCH) ** 2 if case.image else 0, images=int(case.image)),
        upstream=upstream_at(VERSIONS),
    ).job
    return estimate_rank(job, record["rank"] * job.layout.pipeline // case.world)


def _by_component(breakdown: MemoryBreakdown) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for (component, category), size in breakdown.cells.items():
        if size:
            table.setdefault(component.value, {})[category.value] = size
    return table


def _arithmetic(
    answer: RankEstimate, record: Json, found: MemoryBreakdown, estimated: MemoryBreakdown
) -> Json:
    """Elements by component against the architecture's, and what is held beyond 2, 4 and 12 bytes of each.

    bf16 weights, fp32 gradients, and fp32 masters and two moments of this rank's share of what learns.
    """
    elements: Counter[Component] = Counter()
    for weights in stage_weights(answer.job, answer.stage):
        elements[weights.component] += weights.elements
    beyond: dict[str, dict[str, int]] = {}
    for component, count in elements.items():
        states = estimated.cells.get((component, Category.OPTIMIZER_STATES), 0)
        for category, expected in (
            (Category.PARAMETERS, 2 * count),
            (Category.GRADIENTS, 4 * count),
            (Category.OPTIMIZER_STATES, states),
        ):
            beyond.setdefault(component.value, {})[category.value] = (
                found.cells.get((component, category), 0) - expected
            )
    exact = {
        component.value: elements[component] == record["parameters"].get(component.value, 0)
        for component in elements
    }
    return {"elements_exact": all(exact.values()), "beyond_bytes": beyond}


def table(rows: list[Json]) -> str:
    gib = 2**30
    lines = [f"{'case':58} {'peak':>8} {'estimate':>8} {'error':>7} {'seconds':>8} {'host':>6}"]
    for one in rows:
        name = (
            f"{one['model']} {one['layout']} {one['recompute']} {one['profile']}"
            f"{'' if one['image'] else ' text'}"
        )
        if one["peak_bytes"] is None:
            lines.append(f"{name:58} failed: {one['failed'][:90]}")
            continue
        error = one["estimate_bytes"] / one["peak_bytes"] - 1
        lines.append(
            f"{name:58} {one['peak_bytes'] / gib:>8.2f} {one['estimate_bytes'] / gib:>8.2f} {error:>+7.1%} "
            f"{one['processor_seconds']:>8.1f} {one['host_bytes'] / gib:>6.2f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = options.folder.resolve()
    rows = []
    for case in cases():
        if options.only in case.name:
            print(case.name, file=sys.stderr, flush=True)
            rows.append(row(case, run(options.python.absolute(), folder, case)))
    print(json.dumps(rows) if options.json else table(rows))
    ran = [one for one in rows if one["peak_bytes"] is not None]
    wrong = [one for one in ran if not one["arithmetic"]["elements_exact"]]
    short = [
        one
        for one in ran
        if any(size < 0 for cells in one["arithmetic"]["beyond_bytes"].values() for size in cells.values())
    ]
    return 1 if wrong or short else 0


if __name__ == "__main__":
    sys.exit(main())
