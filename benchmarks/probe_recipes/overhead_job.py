"""Step times of one small model under the probe's modes, side by side in one process; prints JSON.

usage: python overhead_job.py DEVICE ROUNDS SCALE, with the probe's folder on PYTHONPATH

Each mode has a model of its own and takes its turn in every round, in another order each time, so that what
else the machine does falls on all of them. On a CPU, "hooks" is the cheap mode of a GPU with a device that
answers at once: what its hooks and looks take of the host.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from small_vlm import SmallVlm, batch, configuration

from firstbad_probe.components import BATCH, LOSS, OPTIMIZER_STEP
from firstbad_probe.device import Reading
from firstbad_probe.observer import Observer
from firstbad_probe.settings import Settings
from firstbad_probe.simulated_device import SimulatedDevice

STEPS = 3  #: of a turn; the first is not counted


class AnsweringDevice(SimulatedDevice):
    """Counts nothing."""

    def choose(self, _capacity_bytes):
        self.chosen = True
        return ""

    def read(self):
        return Reading(0, 0, 0, 0)


class Turn:
    """One mode with its model."""

    def __init__(self, mode, device, config):
        self.observer = None
        self.device = device
        self.own = None
        if mode != "off":
            counted = device == "cuda" or mode == "hooks"
            settings = Settings(
                directory=Path("nowhere"),
                device="cuda" if counted else "cpu",
                rank=1,
                world_size=2,
                local_world_size=1,
                full=mode == "full",
            )
            self.observer = Observer(settings, AnsweringDevice() if mode == "hooks" else None)
        self.batch = batch(config, device)
        self._switch_on()
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        self.model = SmallVlm(config).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if self.observer is not None:
            self.observer.take_model(self.model)
        self.step()
        self.own_bytes = torch.cuda.memory_allocated() - before if device == "cuda" else None
        self._switch_off()

    def _switch_on(self):
        if self.observer is not None:
            self.observer.choose_device()
            self.observer.storages.start()
            if self.observer.modules is not None:
                self.observer.modules.start()
            if self.observer.history is not None:
                self.observer.history.start()

    def _switch_off(self):
        if self.observer is not None:
            self.observer.storages.stop()
            if self.observer.modules is not None:
                self.observer.modules.stop()
            if self.observer.history is not None:
                self.observer.history.stop()

    def step(self):
        watch = self.observer
        if watch is not None:
            watch.start_step()
            watch.storages.begin_phase("forward", BATCH)
        loss = self.model(**self.batch)
        if watch is not None:
            watch.storages.begin_phase("backward", LOSS)
        loss.backward()
        if watch is not None:
            watch.storages.begin_phase("step", OPTIMIZER_STEP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if watch is not None:
            watch.end_step()

    def take(self):
        """The fastest of the turn's steps, in seconds."""
        self._switch_on()
        taken = []
        for _ in range(STEPS):
            self._wait()
            began = time.perf_counter()
            self.step()
            self._wait()
            taken.append(time.perf_counter() - began)
        self._switch_off()
        return min(taken[1:])

    def _wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def measure(device, rounds, scale):
    modes = ("off", "cheap", "full") if device == "cuda" else ("off", "hooks", "cheap", "full")
    config = configuration(scale)
    turns = {mode: Turn(mode, device, config) for mode in modes}
    seconds = {mode: [] for mode in modes}
    for number in range(rounds):
        for at in range(len(modes)):
            mode = modes[(at + number) % len(modes)]
            seconds[mode].append(turns[mode].take())
    off = seconds["off"]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "rounds": rounds,
        "modes": {
            mode: {
                "seconds": statistics.median(taken),
                "ratio": statistics.median(one / other for one, other in zip(taken, off, strict=True)),
                "device_bytes": None
                if turns[mode].own_bytes is None
                else turns[mode].own_bytes - turns["off"].own_bytes,
            }
            for mode, taken in seconds.items()
        },
    }


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), sys.stdout)
