"""How many estimates a second one core makes, and where the time goes.

usage: memory_speed.py [--json] [--profile]

The layouts are those of Qwen3-VL-235B-A22B on 256 GPUs: tensor, pipeline and expert sizes,
micro-batches and recompute. Each is estimated whole, every pipeline stage and instant.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from itertools import product

from memory_models.estimation import estimate
from memory_models.job import Batch, Granularity, Recompute, TrainingJob
from memory_models.layout import ParallelLayout
from memory_models.presets import QWEN3_VL_235B_A22B
from memory_models.shapes import ImageLoad

RECOMPUTES = (
    Recompute(),
    Recompute(granularity=Granularity.SELECTIVE, modules=frozenset({"moe_act"})),
    Recompute(granularity=Granularity.SELECTIVE, modules=frozenset({"moe", "layernorm"})),
    Recompute(granularity=Granularity.FULL),
)


def neighbourhood() -> list[TrainingJob]:
    """Every combination that can be laid out."""
    text, vision = QWEN3_VL_235B_A22B
    jobs = []
    for tensor, pipeline, expert, micro, recompute in product(
        (1, 2, 4, 8), (1, 2), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), RECOMPUTES
    ):
        try:
            jobs.append(
                TrainingJob(
                    text=text,
                    vision=vision,
                    layout=ParallelLayout(
                        world_size=256,
                        tensor=tensor,
                        pipeline=pipeline,
                        expert=expert,
                        sequence_parallel=tensor > 1,
                    ),
                    batch=Batch(
                        micro=micro, total=8192, sequence_length=4096, images=ImageLoad(patches=4096)
                    ),
                    recompute=recompute,
                )
            )
        except ValueError:
            continue
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    jobs = neighbourhood()
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    start = time.process_time()
    smallest = min(jobs, key=lambda job: estimate(job).worst.device_bytes)
    seconds = time.process_time() - start
    profile.disable()
    row = {"estimates_per_second": len(jobs) / seconds, "layouts": len(jobs), "search_seconds": seconds}
    if options.json:
        print(json.dumps(row))
    else:
        rate = row["estimates_per_second"]
        print(f"{row['layouts']} layouts in {seconds:.2f} s of one core: {rate:.0f} a second")
        print(f"smallest: {smallest.layout}, {smallest.recompute}")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
