"""Timelines stay small and keep their heights; the parts of a step sum to the step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstbad_probe.activities import Clock, undisturbed
from firstbad_probe.timeline import Timeline


def test_one_point_is_the_highest_total_while_one_scope_ran() -> None:
    timeline = Timeline()
    for path, size in (("a", 1), ("a", 3), ("a", 2), ("b", 1)):
        timeline.see(0, "forward", path, size)
    assert [(point["instant"], point["allocated_bytes"]) for point in timeline.to_json()] == [
        ("a forward", 3),
        ("b forward", 1),
    ]


def test_a_long_run_is_thinned_and_its_peak_stays() -> None:
    timeline = Timeline(limit=10)
    for index in range(1001):
        timeline.see(index, "forward", "layer", 10_000 if index == 617 else index)
    points = timeline.to_json()
    assert len(points) <= 10
    assert max(points, key=lambda point: point["allocated_bytes"])["step"] == 617
    assert [point["step"] for point in points] == sorted(point["step"] for point in points)


def ticks(*instants: float) -> Iterator[float]:
    yield from instants


def test_each_second_of_a_step_belongs_to_exactly_one_part() -> None:
    now = ticks(0.0, 10.0, 11.0, 13.0, 17.0).__next__
    clock = Clock(now)
    clock.start_step()
    clock.switch("vision", "forward")
    clock.switch("vision", "forward")
    clock.switch("experts", "backward")
    assert clock.end_step() == 7.0
    assert clock.steps == [{("idle", "step"): 1.0, ("vision", "forward"): 2.0, ("experts", "backward"): 4.0}]


def test_the_first_step_warms_up_and_is_left_out_of_the_mean() -> None:
    clock = Clock()
    clock.steps = [{("vision", "forward"): 100.0}, {("vision", "forward"): 1.0}, {("data", "forward"): 3.0}]
    assert clock.steady_mean() == {("data", "forward"): 1.5, ("vision", "forward"): 0.5}
    clock.steps = clock.steps[:1]
    assert clock.steady_mean() == {}


def test_the_mean_of_the_parts_sums_to_the_mean_of_the_steps() -> None:
    clock = Clock()
    for _ in range(3):
        clock.start_step()
        clock.switch("data", "forward")
        clock.switch("experts", "backward")
        clock.end_step()
    sums = [sum(step.values()) for step in clock.steps[1:]]
    assert sum(clock.steady_mean().values()) == pytest.approx(sum(sums) / 2)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel tells no waiting")
def test_waiting_for_a_processor_that_others_use_is_no_time_and_sleeping_is() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # inherited: all five share one processor
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(4)]
    now = undisturbed()
    try:
        started, wall, worked = now(), time.perf_counter(), time.thread_time()
        while time.thread_time() - worked < 0.3:
            pass
        busy, waited = now() - started, time.perf_counter() - wall
        started = now()
        time.sleep(0.2)
        asleep = now() - started
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, allowed)
    assert busy < 0.6 * waited
    assert asleep > 0.19
