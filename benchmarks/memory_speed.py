"""How many layouts a second one core searches, and where the time goes.

usage: memory_speed.py [--json] [--profile]

The layouts are those of Qwen3-VL-235B-A22B on 256 GPUs: tensor, pipeline, context and expert sizes,
micro-batches and recompute. Each job is made and estimated, every pipeline stage at every instant, and the
one that needs least is named, with all its parts. Nothing is known beforehand: the process is fresh.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Iterable, Iterator
from itertools import product

from memory_models.breakdown import GIB
from memory_models.estimation import Estimate, estimate
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


def neighbourhood() -> Iterator[TrainingJob]:
    """Every combination that can be laid out."""
    text, vision = QWEN3_VL_235B_A22B
    for tensor, pipeline, context, expert, micro, recompute in product(
        (1, 2, 4, 8), (1, 2), (1, 2), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8), RECOMPUTES
    ):
        try:
            yield TrainingJob(
                text=text,
                vision=vision,
                layout=ParallelLayout(
                    world_size=256,
                    tensor=tensor,
                    pipeline=pipeline,
                    context=context,
                    expert=expert,
                    sequence_parallel=tensor > 1,
                ),
                batch=Batch(micro=micro, total=8192, sequence_length=4096, images=ImageLoad(patches=4096)),
                recompute=recompute,
            )
        except ValueError:
            continue


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    profile = cProfile.Profile()
    if options.profile:
        profile.enable()
    start = time.process_time()
    count, smallest = search(neighbourhood())
    seconds = time.process_time() - start
    profile.disable()
    row = {"estimates_per_second": count / seconds, "layouts": count, "search_seconds": seconds}
    if options.json:
        print(json.dumps(row))
    else:
        worst = smallest.worst
        print(f"{count} layouts in {seconds:.2f} s of one core: {row['estimates_per_second']:.0f} a second")
        print(f"least: {worst.device_bytes / GIB:.1f} GiB, {worst.job.layout}, {worst.job.recompute}")
        print(f"  at {worst.instant}, in {len(worst.parts)} named parts")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def search(jobs: Iterable[TrainingJob]) -> tuple[int, Estimate]:
    """How many there are, and the one whose worst rank needs least."""
    count, best = 0, None
    for job in jobs:
        answer = estimate(job)
        count += 1
        if best is None or answer.worst.device_bytes < best.worst.device_bytes:
            best = answer
    if best is None:
        raise ValueError("none of the layouts can be laid out")
    return count, best


if __name__ == "__main__":
    main()
