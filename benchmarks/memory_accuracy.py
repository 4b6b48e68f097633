"""Estimates of measured runs of Megatron-LM, for scoring against the allocator's peak.

usage: memory_accuracy.py --records FILE --out ESTIMATES.jsonl [--defaults FILE] [--leave-one-group-out]
       memory_accuracy.py --records FILE --events FILE [--defaults FILE]

A record holds a run's arguments and the peak of its last rank since the start of the process
(so: the last pipeline stage, and the first step counts). With ``--leave-one-group-out`` every
fitted constant is fitted anew on the other groups; without it the shipped constants are used.

An event is a jump of measured memory between two records of one case, named by ``ids``. Those whose
configuration changed in what decides memory are listed: measured and estimated delta, and the keys.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memory_models.breakdown import MIB
from memory_models.calibration import DEFAULT, Band, Calibration
from memory_models.comparison import differences
from memory_models.configuration_keys import BRIDGE_KEYS
from memory_models.estimation import RankEstimate, estimate_rank, rarely_measured
from memory_models.job import Card, TrainingJob
from memory_models.reading_megatron import read_megatron_arguments
from memory_models.upstream import upstream_at

Record = Mapping[str, Any]
#: No constant at all: what the formulas alone come to.
NOTHING = Calibration(remainder_bytes=0)
#: Share of measured peaks that may lie below the band, and above it.
TAIL = 0.03
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
    old = record.get("env") == "lts" and record["date"] < LTS_DETERMINISTIC_ATTENTION
    if old and str(stack.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")) == "0":
        stack |= {"NVTE_FLASH_ATTN": 0, "NVTE_FUSED_ATTN": 0}
    return read_megatron_arguments(
        arguments,
        world_size=int(world),
        padded_vocabulary=int(derived.get("padded_vocab_size") or 51_200),
        defaults=defaults.get(record["defaults_id"], {}),
        environment=stack,
        imbalance=IMBALANCE,
        card=CARDS.get(record.get("gpu") or "", Card.HOPPER),
        upstream=upstream_at({"megatron-lm": record["date"]}),
    ).job


def last_rank(job: TrainingJob, calibration: Calibration) -> RankEstimate:
    return estimate_rank(job, job.layout.pipeline - 1, calibration)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--events", type=Path)
    parser.add_argument("--defaults", type=Path)
    parser.add_argument("--leave-one-group-out", action="store_true")
    options = parser.parse_args()
    records = [json.loads(line) for line in options.records.read_text().splitlines() if line.strip()]
    beside = options.defaults or options.records.with_name("defaults.json")
    defaults = json.loads(beside.read_text()) if beside.exists() else {}
    if options.events:
        print_events(records, defaults, options.events)
    if options.out is None:
        return
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
    known = [record for record in records if record["id"] in jobs]
    bare = {record["id"]: last_rank(jobs[record["id"]], NOTHING).allocated_bytes for record in known}
    print(f"fitted over all of them: {fit(known, jobs, bare)}")
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} estimates, {len(refused)} records that cannot be laid out")
    for case, why in sorted(set(refused)):
        print(f"  {case}: {why}")


def print_events(records: Sequence[Record], defaults: Mapping[str, Any], events: Path) -> None:
    """One line for each event that a configuration explains, and how many deltas are right."""
    by_id = {record["id"]: record for record in records}
    count = right = near = 0
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if not event["memory_config_changed"] or any(name not in by_id for name in event["ids"]):
            continue
        before, after = (job_of(by_id[name], defaults) for name in event["ids"][:2])
        estimated = last_rank(after, DEFAULT).allocated_bytes - last_rank(before, DEFAULT).allocated_bytes
        measured = event["peak_after"] - event["peak_before"]
        keys = sorted(BRIDGE_KEYS.get(path, path) for path, _, _ in differences(before, after))
        count, right = count + 1, right + (measured * estimated > 0)
        near += abs(estimated - measured) <= abs(measured) / 4
        print(f"measured {measured / MIB:+9.0f} MiB, estimated {estimated / MIB:+9.0f}: {event['case']}")
        print(f"    {', '.join(keys) or 'nothing that the model follows'}")
    print(f"direction right in {right} of {count}, within a quarter of the measured delta in {near}")


def estimates(
    records: Sequence[Record], jobs: Mapping[str, TrainingJob], *, leave_out: bool
) -> list[dict[str, Any]]:
    """One row for each record that could be laid out; if asked, by constants that never saw its group."""
    known = [record for record in records if record["id"] in jobs]
    bare = {record["id"]: last_rank(jobs[record["id"]], NOTHING).allocated_bytes for record in known}
    rows = []
    for group in dict.fromkeys(record["group"] for record in known):
        calibration = DEFAULT
        if leave_out:
            calibration = fit([record for record in known if record["group"] != group], jobs, bare)
        for record in known:
            if record["group"] == group:
                answer = last_rank(jobs[record["id"]], calibration)
                rows.append(
                    {
                        "id": record["id"],
                        "estimate_bytes": answer.allocated_bytes,
                        "low_bytes": answer.low_bytes,
                        "high_bytes": answer.high_bytes,
                    }
                )
    return rows


def fit(records: Sequence[Record], jobs: Mapping[str, TrainingJob], bare: Mapping[str, int]) -> Calibration:
    """The fitted constants over these records: a median residual, and quantiles of what is left.

    ``bare`` holds each record's estimate without the constant, in bytes.
    """
    dense = [row for row in records if not row["is_moe"] and not rarely_measured(jobs[row["id"]])]
    remainder = round(statistics.median(record["peak_bytes"] - bare[record["id"]] for record in dense))
    ratios: dict[str, list[float]] = defaultdict(list)
    for record in records:
        job = jobs[record["id"]]
        kind = "rare" if rarely_measured(job) else ("experts" if job.text.has_experts else "dense")
        ratios[kind].append(record["peak_bytes"] / (bare[record["id"]] + remainder))
    return Calibration(
        remainder_bytes=max(0, remainder),
        dense=_band(ratios["dense"]),
        experts=_band(ratios["experts"]),
        rare=_band(ratios["rare"]),
    )


def _band(ratios: Sequence[float]) -> Band:
    ordered = sorted(ratios)
    return Band(low=ordered[int(TAIL * len(ordered))], high=ordered[int((1 - TAIL) * len(ordered))])


if __name__ == "__main__":
    main()
