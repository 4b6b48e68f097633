"""Small torch programs under the probe's way on a GPU, with a device that stands for one.

Run by the tests in a training environment, as `scenes.py` is. Tensors of the CPU are the allocations, so that
what the counters tell can be held against what following every operation tells of the same program.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scenes import TOKENS, WIDTH, Language, Model

from firstbad_probe import device_watch
from firstbad_probe.components import LOSS, Scope
from firstbad_probe.counted_scopes import CountedScopes
from firstbad_probe.device import CudaDevice
from firstbad_probe.event_clock import EventClock
from firstbad_probe.handovers import Handovers
from firstbad_probe.hooks import Hooks
from firstbad_probe.modules import RunningModules
from firstbad_probe.observer import Observer
from firstbad_probe.ownership import Ownership
from firstbad_probe.settings import Settings
from firstbad_probe.simulated_device import SimulatedDevice

MATRIX = TOKENS * WIDTH * 4


class UncountedDevice(SimulatedDevice):
    """One that follows no operation: a compiler would trace what does."""

    def choose(self, capacity_bytes: int | None) -> str:
        self.chosen = True
        return ""


class Watched:
    """An observer of a device or of a CPU, and the training of one model under it."""

    def __init__(
        self,
        *,
        on_device: bool = True,
        capacity_bytes: int | None = None,
        device: SimulatedDevice | None = None,
    ) -> None:
        self.device = device or (SimulatedDevice() if on_device else None)
        settings = Settings(
            directory=Path("/nonexistent"),
            device="cuda" if on_device else "cpu",
            rank=1,
            world_size=2,
            local_world_size=2,
            capacity_bytes=capacity_bytes,
        )
        self.observer = Observer(settings, self.device)
        Hooks(self.observer).watch_torch()
        if on_device:
            self.observer.choose_device()
        else:
            self.observer.storages.start()

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        pixels = torch.ones(TOKENS, WIDTH)
        self.observer.start_step()
        model(pixel_values=pixels).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.observer.end_step()

    def end(self) -> None:
        self.observer.finish()
        if self.device is not None:
            self.device.stop()

    def summit(self, phase: str) -> dict[str, Any]:
        self.observer.storages.settle()
        summit = self.observer.storages.live.summits[phase]
        cells = {f"{one} {two}": size for (one, two), size in summit.cells.items() if size}
        return {"bytes": summit.allocated_bytes, "instant": summit.instant, "cells": cells}


def training(how: str, *, on_device: bool, steps: int = 1) -> dict[str, Any]:
    torch.manual_seed(0)
    watched = Watched(on_device=on_device)
    model = Model(how)
    watched.observer.take_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        watched.step(model, optimizer)
    watched.end()
    watch = watched.observer.watch
    return {
        **{phase: watched.summit(phase) for phase in ("forward", "backward", "step")},
        "steps": watched.observer.steps,
        "unseen": watched.observer.unseen,
        "watch": None if watch is None else watch.to_json(),
        "seconds": None
        if watch is None
        else {f"{activity} {phase}": value for (activity, phase), value in watch.clock.steady_mean().items()},
    }


def under_a_small_allowance() -> dict[str, Any]:
    """Whatever the machine, looks take more than a ten-thousandth of a step of milliseconds."""
    device_watch.HOST_SHARE = 1e-4
    return {**training("kept", on_device=True, steps=12), "allowed": device_watch.HOST_SHARE}


def two_microbatches_in_flight() -> dict[str, Any]:
    """As a pipeline's first stage runs them: both forward, then both backward."""
    watched = Watched()
    model = Model()
    watched.observer.take_model(model)
    watched.observer.start_step()
    losses = [model(pixel_values=torch.ones(TOKENS, WIDTH)).square().mean() for _ in range(2)]
    for loss in losses:
        loss.backward()
    losses.clear()
    watched.observer.end_step()
    watched.end()
    return watched.summit("backward")


def what_the_job_reads() -> dict[str, Any]:
    """The job reads and sets back its peaks, beside the probe and alone."""
    simulated = SimulatedDevice()
    simulated.choose(None)
    torch._C._cuda_memoryStats = simulated.statistics
    torch._C._cuda_resetPeakMemoryStats = simulated.set_back
    torch.cuda.is_initialized = torch.cuda.memory.is_initialized = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda *_: "none"
    torch.cuda.memory._get_device_index = lambda *_, **__: 0
    answers: dict[str, Any] = {}
    for name, device in (("alone", None), ("beside the probe", CudaDevice())):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        if device is not None:
            device.choose(None)
        look = device.read if device is not None else (lambda: None)
        seen = []
        for size in (4, 2):
            tensor = torch.zeros(size * 128)
            look()
            del tensor
            looked = look()
            seen.append(torch.cuda.max_memory_allocated() - before)
        torch.cuda.reset_peak_memory_stats()
        tensor = torch.zeros(128)
        del tensor
        seen.append(torch.cuda.max_memory_reserved() - before)
        tensor = torch.zeros(3 * 128)
        del tensor
        torch.cuda.reset_peak_memory_stats()  # between two looks: the probe must not lose the three
        own = look()
        answers[name] = seen
        if looked is not None and own is not None:
            answers["own"] = [looked.allocated_peak_bytes - before, own.allocated_peak_bytes - before]
    return answers


def refusals(capacity_bytes: int) -> dict[str, Any]:
    torch.manual_seed(0)
    watched = Watched(capacity_bytes=capacity_bytes)
    message = ""
    try:
        model = Model()
        watched.observer.take_model(model)
        watched.step(model)
    except torch.OutOfMemoryError as error:
        message = str(error)
    watched.end()
    assert watched.observer.watch is not None
    return {"events": watched.observer.watch.refusals, "message": message}


def a_compiled_tower() -> dict[str, Any]:
    """The tower is compiled as one graph: fullgraph refuses whatever a hook would add to it."""
    torch.manual_seed(0)
    watched = Watched(device=UncountedDevice())
    model = Model()
    watched.observer.take_model(model)
    model.vision_model.compile(backend="aot_eager", fullgraph=True)
    for _ in range(2):
        watched.step(model)
    watched.end()
    return {"unseen": watched.observer.unseen, "steps": len(watched.observer.steps)}


def a_captured_graph() -> dict[str, Any]:
    """In the second step a CUDA graph is being captured; in the third it is replayed, without its modules."""
    watched = Watched()
    assert watched.device is not None
    model = Model()
    watched.observer.take_model(model)
    watched.step(model)
    watched.device.captures = True
    watched.step(model)
    watched.device.captures = False
    replayed = Language("kept")
    model.language_model.decoder[1].forward = lambda hidden: replayed.decoder[1](hidden)
    watched.step(model)
    watched.end()
    return {
        "unseen": watched.observer.unseen,
        "seconds": [step["seconds"] for step in watched.observer.steps],
        "parts": len(watched.observer.watch.clock.steps) if watched.observer.watch else 0,
    }


def hooks_on_modules() -> dict[str, int]:
    """What capturing CUDA graphs asks of the modules that it is given."""
    watched = Watched()
    model = Model()
    watched.observer.take_model(model)
    inner = [module for path, module in model.named_modules() if path]
    return {
        "before": sum(len(module._forward_pre_hooks) for module in inner),
        "after": sum(len(module._forward_hooks) for module in inner),
        "backward": sum(len(module._backward_hooks) for module in inner),
    }


def backward_on_another_thread() -> dict[str, list[str]]:
    """As a GPU's does: the scopes that come must be those that come on one thread."""

    def order(threaded: bool) -> list[str]:
        seen: list[str] = []

        def look(scope: Scope, phase: str) -> None:
            if phase == "backward":
                seen.append(scope.path)

        storages = Observer(Settings(Path("/n"), "cuda", 0, 1, 1), SimulatedDevice()).storages
        scopes = CountedScopes(EventClock(SimulatedDevice()), look)
        modules = RunningModules(scopes, Handovers(storages, "cpu"))
        model = Model("not reentrant")
        modules.follow(Ownership(storages, scopes).take_model(model))
        loss = model(pixel_values=torch.ones(TOKENS, WIDTH)).square().mean()
        scopes.begin_phase("backward", LOSS)
        if threaded:
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
        else:
            loss.backward()
        scopes.close()
        modules.stop()
        return seen

    return {"own": order(False), "other": order(True)}


def resharded_parameters() -> list[dict[str, int]]:
    """A parameter's memory is given back and taken again, as sharding does around each use."""
    watched = Watched()
    model = Model()
    watched.observer.take_model(model)
    live = watched.observer.storages.live
    weight = model.vision_model.block.weight
    sizes = []
    for size in (None, 0, weight.nbytes):
        if size is not None:
            weight.untyped_storage().resize_(size)
        sizes.append(live.cells.get(("vision", "parameters"), 0))
    watched.end()
    return sizes


SCENES: dict[str, Callable[[], Any]] = {
    **{
        f"{how}, {'counted' if counted else 'followed'}": (
            lambda how=how, counted=counted: training(how, on_device=counted)
        )
        for how in ("kept", "reentrant", "not reentrant")
        for counted in (True, False)
    },
    "many steps": under_a_small_allowance,
    "in flight": two_microbatches_in_flight,
    "read by the job": what_the_job_reads,
    "refused in forward": lambda: refusals(64 * 1024),
    "refused in backward": lambda: refusals(100 * 1024),
    "compiled": a_compiled_tower,
    "captured": a_captured_graph,
    "hooks": hooks_on_modules,
    "threads": backward_on_another_thread,
    "resharded": resharded_parameters,
}


def play(name: str) -> Any:
    return SCENES[name]()


if __name__ == "__main__":
    # A process for each scene: hooks on torch itself stay for the life of a process.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = dict(zip(SCENES, pool.map(play, SCENES, chunksize=1), strict=True))
    json.dump(answers, sys.stdout)
