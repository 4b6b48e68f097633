"""Watches a training run from outside: its model, its steps, and whose each byte and second is.

The script does not help: `hooks` tells the observer what the job does. What is seen is kept by the modules
it belongs to (`storages`, `ownership`, `activities`, `batch`, on a GPU `device_watch` and `modules`);
`record` writes it down.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from firstbad_probe import live_bytes
from firstbad_probe.activities import Clock, undisturbed
from firstbad_probe.batch import Batches
from firstbad_probe.components import (
    BATCH,
    DECODER,
    EMBEDDING_AND_LOSS,
    LOSS,
    OUTSIDE,
    RUNTIME,
    VISION,
    Scope,
)
from firstbad_probe.configuration import to_plain
from firstbad_probe.counted_scopes import CountedScopes
from firstbad_probe.device import CudaDevice
from firstbad_probe.device_watch import Device, DeviceWatch
from firstbad_probe.files import write_json, write_text
from firstbad_probe.handovers import Handovers
from firstbad_probe.history import AllocationHistory
from firstbad_probe.modules import RunningModules
from firstbad_probe.ownership import Ownership
from firstbad_probe.preparation import Preparations
from firstbad_probe.scopes import FORWARD, STEP, Scopes
from firstbad_probe.settings import Settings
from firstbad_probe.storages import Storages
from firstbad_probe.timeline import Timeline


class Observer:
    """Everything seen of one rank.

    On a CPU every operation is followed. On a GPU, where backward runs on another thread and the allocator
    knows the totals, modules are followed instead and the allocator's counters read (`watch`, `modules`).
    `device` stands for the GPU in tests and rehearsals.
    """

    def __init__(self, settings: Settings, device: Device | None = None) -> None:
        self.settings = settings
        self.simulated = settings.device == "dry_run"  #: nothing is computed: sizes are true, values are not
        self.timeline = Timeline()
        self.scopes: Scopes
        self.watch: DeviceWatch | None = None
        self.modules: RunningModules | None = None
        self.history: AllocationHistory | None = None
        self.clock: Clock | None = None  #: of the host; a GPU's seconds are the device's own
        if settings.device == "cuda":
            self._prepare_device(device if device is not None else CudaDevice())
        else:
            self.clock = Clock(undisturbed())
            self.scopes = Scopes(self.clock)
            self.storages = Storages(
                self.scopes,
                self.timeline,
                settings.capacity_bytes,
                lists=settings.lists_storages or settings.full,
                locates=settings.full,
            )
        self.ownership = Ownership(self.storages, self.scopes)
        self.batches = Batches(examines=not self.simulated)
        self.preparations = Preparations()
        self.steps: list[dict[str, Any]] = []
        #: Step to the cells that were alive after it; of the first and the newest step.
        self.retained: dict[int, dict[live_bytes.Cell, int]] = {}
        self.notes: list[str] = []
        self.unseen: list[str] = []
        self.rehearsed: list[int] = []  #: of a dry run: the ranks that have a process each
        self.mock_data: str | None = None  #: the class of a mock data set in use
        self.loop_is_known = False  #: a training loop says where its steps begin and end
        self.updates_end_steps = False  #: as nothing else does
        self._step_is_open = False
        self._models = 0
        self._inputs: list[live_bytes.Block] = []  #: of this step
        #: Modules that are handed the message of the stage before, and their components.
        self._receivers: list[tuple[torch.nn.Module, str]] = []

    def _prepare_device(self, device: Device) -> None:
        live = live_bytes.LiveBytes()
        watch = DeviceWatch(device, live, self.timeline, lambda: self.storages.settle())
        history = AllocationHistory() if self.settings.full and device.kind == "cuda" else None
        scopes = CountedScopes(watch.clock, watch.look, None if history is None else history.mark)
        counted_on = "cuda" if device.kind == "cuda" else "cpu"
        self.storages = Storages(scopes, self.timeline, labels_only=counted_on, live=live)
        self.scopes, self.watch, self.history = scopes, watch, history
        watch.handovers = Handovers(self.storages, counted_on)
        self.modules = RunningModules(scopes, watch.handovers)

    def choose_device(self) -> None:
        """The job has chosen its device, if there is one to choose."""
        if self.watch is None or self.watch.device.chosen:
            return
        self.storages.start()
        self.watch.choose(self.settings.capacity_bytes, lambda: (self.scopes.here(), self.scopes.phase))
        if self.history is not None:
            self.history.start()

    def finish(self) -> None:
        """The job has ended, one way or the other."""
        self.storages.stop()
        if self.watch is not None and self.modules is not None:
            self.modules.stop()
            self.watch.finish()
            self.unseen += [*self.watch.unseen, *self.modules.unseen()]

    def take_model(self, model: torch.nn.Module) -> None:
        """Label the model's tensors and follow its modules from now on."""
        self._choose_late()
        prefix = f"chunk {self._models}" if self._models else ""
        self._models += 1
        taken = self.ownership.take_model(model, prefix)
        root = taken[0][0]
        root.register_forward_pre_hook(self._before_model, with_kwargs=True)
        if self.modules is not None:
            self.modules.follow(taken)
        else:
            for module, scope in taken:
                self._follow(module, scope)
        root.register_forward_hook(self._after_model, always_call=True)
        for module, scope in taken[1:]:
            if hasattr(module, "set_input_tensor"):
                self._receivers.append((module, scope.component))
            if scope.path.endswith(".experts"):
                if self.modules is not None:
                    self.modules.call_before(module, self._before_experts)
                else:
                    module.register_forward_pre_hook(self._before_experts)

    def take_shards(self, model: torch.nn.Module) -> None:
        """Sharding has replaced the model's parameters: label what stands for them now."""
        self.ownership.take_again(model)
        self.unseen.append(
            "parameters are sharded (FSDP): flat buffers that hold the shards of several components, and "
            "parameters gathered for use, count as the runtime's or as the module's that runs"
        )

    def _choose_late(self) -> None:
        """For a job that took the device that torch gave it."""
        if self.watch is not None and (self.watch.device.kind != "cuda" or torch.cuda.is_initialized()):
            self.choose_device()

    def _follow(self, module: torch.nn.Module, scope: Scope) -> None:
        enter, leave = self.scopes.enter, self.scopes.leave
        module.register_forward_pre_hook(lambda *_: enter(scope))
        module.register_forward_hook(lambda *_: leave(scope), always_call=True)

    def _before_model(self, _model: Any, _args: Any, keywords: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        if not self.loop_is_known and not self._step_is_open:
            self.updates_end_steps = True
            self.start_step()
        if self.scopes.phase != FORWARD and not self.scopes.in_backward_node:
            self.storages.begin_phase(FORWARD, BATCH)
        for name, value in keywords.items():
            block = self.storages.block_of(value) if isinstance(value, torch.Tensor) else None
            if block is not None or (self.watch is not None and isinstance(value, torch.Tensor)):
                self.storages.label(value, _component_of_input(name), live_bytes.ACTIVATIONS)
                block = self.storages.block_of(value)
                self._inputs += [block] if block is not None else []
        for receiver, component in self._receivers:
            message = getattr(receiver, "input_tensor", None)
            if isinstance(message, torch.Tensor) and self.storages.block_of(message) is not None:
                self.storages.label(message, component, live_bytes.ACTIVATIONS)
        if self.watch is not None and self.watch.device.capturing():
            self._miss("batches inside a captured CUDA graph are not counted")
            return
        with self.scopes.on_host(BATCH):
            self.batches.see(keywords, counted=_counts_tokens())

    def _before_experts(self, _experts: Any, args: tuple[Any, ...]) -> None:
        """Rows that reach the routed experts of this rank; those of a replay were counted before."""
        rows, *others = args or (None,)
        if not isinstance(rows, torch.Tensor) or not rows.dim() or self.scopes.in_backward_node:
            return
        tally = self.batches.tally
        tally.add("expert_tokens", rows.shape[0])
        by_expert = others[0] if others else None
        if isinstance(by_expert, torch.Tensor) and by_expert.dim() == 1 and by_expert.numel():
            tally.add("expert_calls", by_expert.numel())
            if self.watch is not None and self.watch.device.capturing():
                self._miss("the busiest expert inside a captured CUDA graph is not counted")
            else:
                tally.raise_to("most_expert_tokens", by_expert.max())
        else:
            tally.add("expert_calls", 1)

    def _after_model(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.scopes.stand_on(LOSS)

    def start_step(self) -> None:
        self._step_is_open = True
        self._choose_late()
        self.storages.begin_phase(STEP, OUTSIDE)
        if self.clock is not None:
            self.scopes.forget_nodes()
            self.storages.live.start_step()
            self.clock.start_step()
        elif self.watch is not None and isinstance(self.scopes, CountedScopes):
            self.scopes.close()
            self.watch.start_step()
            self.scopes.follows_modules = self.watch.watched

    def end_step(self) -> None:
        self._step_is_open = False
        self.storages.begin_phase(STEP, OUTSIDE)
        self._disown_inputs()
        step = self.scopes.step
        row: dict[str, Any] = {"step": step, "seconds": 0.0, "preparations": self.preparations.take()}
        counts = self.batches.take_counts()
        if self.watch is not None and self.modules is not None and isinstance(self.scopes, CountedScopes):
            self.storages.measure_again()
            self.scopes.close()

            def told(seconds: float) -> None:
                row.update(seconds=seconds, **counts())

            row.update(self.watch.end_step(told))
            kept = self.watch.counted.held()
            self.modules.end_step(step)
        elif self.clock is not None:
            live = self.storages.live
            row.update(peak_bytes=live.step_peak_bytes, retained_bytes=live.total_bytes)
            kept = {cell: size for cell, size in live.cells.items() if size}
            row.update(seconds=self.clock.end_step(), **counts())
        self.retained = {step: self.retained[step] for step in list(self.retained)[:1]}
        self.retained[step] = kept
        self.steps.append(row)
        self.scopes.step += 1
        self.tell(f"{self.scopes.step} steps taken, peak {row['peak_bytes'] / 2**20:.1f} MiB")

    def _disown_inputs(self) -> None:
        """Inputs are of the module that they are for; one that outlives its step is kept by none of them."""
        for block in self._inputs:
            if block.alive:
                parts = (((RUNTIME, live_bytes.ACTIVATIONS), block.size_bytes),)
                self.storages.live.move(block, parts)
        self._inputs.clear()

    def see_configuration(self, configuration: Any) -> None:
        model = getattr(configuration, "model", None)
        self.batches.image_token_id = getattr(model, "image_token_id", None)
        if getattr(model, "moe_router_force_load_balancing", False):
            self._note("moe_router_force_load_balancing is on: routing is not the router's own")
        data_set = type(getattr(configuration, "dataset", None)).__name__
        if "mock" in data_set.lower():
            self.mock_data = data_set
        if self.settings.rank == 0:
            write_json(Path(self.settings.directory) / "config.json", to_plain(configuration))

    def tell(self, text: str) -> None:
        """For whoever watches the trial; the newest word replaces the one before."""
        if self.simulated:
            text = f"rank {self.settings.rank} of {self.settings.world_size}, dry: {text}"
        if self.settings.rank == 0 or self.simulated:  # the stages of a dry run take turns
            write_text(Path(self.settings.directory) / "progress.txt", text + "\n")

    def _miss(self, what: str) -> None:
        if what not in self.unseen:
            self.unseen.append(what)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _component_of_input(name: str) -> str:
    if name.startswith(("pixel", "image", "video")):
        return VISION
    return DECODER if "attention_mask" in name else EMBEDDING_AND_LOSS


def _counts_tokens() -> bool:
    """One rank of those that see the same tokens counts them: sums over ranks stay true."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return True
    return all(
        getattr(state, name)() == 0
        for name in (
            "get_tensor_model_parallel_rank",
            "get_context_parallel_rank",
            "get_pipeline_model_parallel_rank",
        )
    )
