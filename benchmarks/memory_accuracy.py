"""Estimates of measured runs of Megatron-LM, for scoring against the allocator's peak.

usage: memory_accuracy.py --records FILE --out ESTIMATES.jsonl [--defaults FILE] [--leave-one-group-out]

A record holds a run's arguments and the peak of its last rank since the start of the process
(so: the last pipeline stage, and the first step counts). With ``--leave-one-group-out`` every
fitted constant is fitted anew on the other groups; without it the shipped constants are used.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memory_models.calibration import DEFAULT, Calibration
from memory_models.estimation import RankEstimate, estimate_rank
from memory_models.job import Card, TrainingJob
from memory_models.reading_megatron import read_megatron_arguments

Record = Mapping[str, Any]
CARDS = {"A100": Card.AMPERE, "H100": Card.HOPPER, "GB200": Card.BLACKWELL}
#: The long-term image got a Transformer Engine with a deterministic attention kernel then; before,
#: a run that asks for determinism falls back to the unfused one.
LTS_DETERMINISTIC_ATTENTION = "2025-11-01"
#: Rows on the fullest moment of a rank over the balanced number: the middle of the published
#: cumulative values, 1.05 to 1.1. No record says what its router did, and none is fitted.
IMBALANCE = 1.08
FAMILIES = ("gpt", "moe", "hybrid", "multimodal")


def job_of(record: Record, defaults: Mapping[str, Any]) -> TrainingJob:
    """The job of a record. Raises ValueError where it cannot be laid out."""
    arguments, derived = record["args"], record["derived"]
    world = record.get("world_size") or (record.get("world_size_inferred") or {}).get("value")
    if world is None:
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        world = 1
        for name in sizes:
            world *= int(arguments.get(name) or 1)
        world = max(world, int(arguments.get("expert_model_parallel_size") or 1))
    stack = dict(record.get("env_vars") or {})
    if record.get("env") == "lts" and record["date"] < LTS_DETERMINISTIC_ATTENTION:
        if str(stack.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")) == "0":
            stack |= {"NVTE_FLASH_ATTN": 0, "NVTE_FUSED_ATTN": 0}
    return read_megatron_arguments(
        arguments,
        world_size=int(world),
        padded_vocabulary=int(derived.get("padded_vocab_size") or 51_200),
        defaults=defaults.get(record["defaults_id"], {}),
        environment=stack,
        imbalance=IMBALANCE,
        card=CARDS.get(record.get("gpu") or "", Card.HOPPER),
    ).job


def last_rank(job: TrainingJob, calibration: Calibration) -> RankEstimate:
    return estimate_rank(job, job.layout.pipeline - 1, calibration)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--defaults", type=Path)
    parser.add_argument("--leave-one-group-out", action="store_true")
    options = parser.parse_args()
    records = [json.loads(line) for line in options.records.read_text().splitlines() if line.strip()]
    beside = options.defaults or options.records.with_name("defaults.json")
    defaults = json.loads(beside.read_text()) if beside.exists() else {}
    jobs: dict[str, TrainingJob] = {}
    refused: list[tuple[str, str]] = []
    for record in records:
        if record["family"] in FAMILIES:
            try:
                job = job_of(record, defaults)
                last_rank(job, DEFAULT)
                jobs[record["id"]] = job
            except ValueError as error:
                refused.append((record["case"], str(error)))
    rows = estimates(records, jobs, leave_out=options.leave_one_group_out)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} estimates, {len(refused)} records that cannot be laid out")
    for case, why in sorted(set(refused)):
        print(f"  {case}: {why}")


def estimates(
    records: Sequence[Record], jobs: Mapping[str, TrainingJob], *, leave_out: bool
) -> list[dict[str, Any]]:
    rows = []
    by_group: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record["id"] in jobs:
            by_group[record["group"]].append(record)
    for members in by_group.values():
        for record in members:
            answer = last_rank(jobs[record["id"]], DEFAULT)
            rows.append(
                {
                    "id": record["id"],
                    "estimate_bytes": answer.allocated_bytes,
                    "low_bytes": answer.low_bytes,
                    "high_bytes": answer.high_bytes,
                }
            )
    return rows


if __name__ == "__main__":
    main()
