"""Watches a training run from outside: hooks on the model, the schedules, the optimizer and Bridge's loop.

The script does not help. Each hook is put in place when its module is imported,
by an attribute that must be there; a release without it gives a note, not a
failure. What is seen is kept by the modules it belongs to (`storages`,
`ownership`, `activities`, `batch`); `record` writes it down.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from firstbad_probe import live_bytes
from firstbad_probe.activities import Clock, undisturbed
from firstbad_probe.batch import Batches
from firstbad_probe.components import (
    BATCH,
    DATA,
    DECODER,
    EMBEDDING_AND_LOSS,
    GRADIENT_SYNC,
    LOSS,
    MESSAGES,
    OPTIMIZER_STEP,
    OUTSIDE,
    RUNTIME,
    VISION,
    Scope,
)
from firstbad_probe.configuration import to_plain
from firstbad_probe.files import write_json, write_text
from firstbad_probe.gpu import AllocatorTotals
from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.ownership import Ownership
from firstbad_probe.scopes import BACKWARD, FORWARD, STEP, Scopes
from firstbad_probe.settings import Settings
from firstbad_probe.storages import Storages
from firstbad_probe.timeline import Timeline

LOADER = Scope(RUNTIME, DATA, "data loader")


class Observer:
    """Everything seen of one rank."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        on_gpu = settings.device == "cuda"
        self.clock = Clock() if on_gpu else Clock(undisturbed())
        self.scopes = Scopes(self.clock)
        self.timeline = Timeline()
        self.gpu = AllocatorTotals(settings.capacity_bytes) if on_gpu else None
        self.storages = Storages(
            self.scopes,
            self.timeline,
            None if on_gpu else settings.capacity_bytes,
            follows_operations=not on_gpu,
            lists=settings.lists_storages and not on_gpu,
        )
        self.ownership = Ownership(self.storages, self.scopes)
        self.batches = Batches()
        self.steps: list[dict[str, Any]] = []
        #: Step to the cells that were alive after it; of the first and the newest step.
        self.retained: dict[int, dict[live_bytes.Cell, int]] = {}
        self.notes: list[str] = []
        self.mock_data: str | None = None  #: the class of a mock data set in use
        self._loop_is_known = False  #: a training loop says where its steps begin and end
        self._step_is_open = False
        self._updates_end_steps = False  #: as nothing else does
        self._models = 0
        self._inputs: list[live_bytes.Block] = []  #: of this step
        #: Modules that are handed the message of the stage before, and their components.
        self._receivers: list[tuple[torch.nn.Module, str]] = []

    # --- hooks that wait for their module

    def watch(self, callbacks: ImportCallbacks) -> None:
        for module_name, hook in (
            ("megatron.core.distributed.distributed_data_parallel", self._hook_wrapper),
            ("megatron.core.distributed.param_and_grad_buffer", self._hook_buffers),
            ("megatron.core.distributed", self._hook_gradient_sync),
            ("megatron.core.pipeline_parallel.schedules", self._hook_schedules),
            ("megatron.core.pipeline_parallel.p2p_communication", self._hook_messages),
            ("megatron.core.optimizer", self._hook_optimizer),
            ("megatron.core.rerun_state_machine", self._hook_data_iterator),
            ("megatron.bridge.training.setup", self._hook_data_sets),
            ("megatron.bridge.training.pretrain", self._hook_setup),
            ("megatron.bridge.training.train", self._hook_train_step),
        ):
            callbacks.after(module_name, hook)
        self.watch_torch()

    def watch_torch(self) -> None:
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def observed_backward(*args: Any, **keywords: Any) -> Any:
            if self.scopes.phase != BACKWARD:
                self.storages.begin_phase(BACKWARD, LOSS)
            return backward(*args, **keywords)

        torch.autograd.backward = observed_backward
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def _before_update(self, *_: Any) -> None:
        if self.scopes.phase != STEP:
            self.storages.begin_phase(STEP, OPTIMIZER_STEP)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.ownership.take_states(optimizer)

    def _hook_wrapper(self, module: Any) -> None:
        wrapper_class = module.DistributedDataParallel
        initialize = wrapper_class.__init__

        @functools.wraps(initialize)
        def __init__(wrapper: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
            self.storages.start()
            wrapped = keywords.get("module")
            if wrapped is None:
                wrapped = next(item for item in args if isinstance(item, torch.nn.Module))
            self.take_model(wrapped)
            initialize(wrapper, *args, **keywords)
            self.ownership.take_wrapper(wrapper)

        wrapper_class.__init__ = __init__

    def _hook_buffers(self, module: Any) -> None:
        """While a flat buffer is made it is not split yet: it goes to its largest owner first."""
        buffer_class = module._ParamAndGradBuffer
        initialize = buffer_class.__init__

        @functools.wraps(initialize)
        def __init__(buffer: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
            parameters = [
                item
                for value in (*args, *keywords.values())
                if isinstance(value, (list, tuple))
                for item in value
                if isinstance(item, torch.nn.Parameter)
            ]
            owner = self.ownership.dominant(parameters)
            with self.scopes.inside(
                Scope(owner, OUTSIDE.activity, "flat buffers of parameters and gradients")
            ):
                initialize(buffer, *args, **keywords)

        buffer_class.__init__ = __init__

    def _hook_gradient_sync(self, module: Any) -> None:
        module.finalize_model_grads = self._in_phase(STEP, GRADIENT_SYNC, module.finalize_model_grads)

    def _hook_schedules(self, module: Any) -> None:
        module.forward_step = self._in_phase(FORWARD, BATCH, module.forward_step)
        module.backward_step = self._in_phase(BACKWARD, LOSS, module.backward_step)

    def _hook_messages(self, module: Any) -> None:
        """The messages of a pipeline; newer releases hold in a class what a module held."""
        holder = getattr(module, "P2PCommunicator", module)
        communicate = holder._communicate

        @functools.wraps(communicate)
        def observed(*args: Any, **keywords: Any) -> Any:
            with self.scopes.inside(MESSAGES):
                return communicate(*args, **keywords)

        holder._communicate = observed

    def _in_phase(self, phase: str, ground: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def observed(*args: Any, **keywords: Any) -> Any:
            self.storages.begin_phase(phase, ground)
            result = function(*args, **keywords)
            if phase == STEP:  # what the job does next, between two of these, is neither's time
                self.scopes.stand_on(OUTSIDE)
            return result

        return observed

    def _hook_optimizer(self, module: Any) -> None:
        make = module.get_megatron_optimizer

        @functools.wraps(make)
        def get_megatron_optimizer(*args: Any, **keywords: Any) -> Any:
            with self.scopes.inside(OPTIMIZER_STEP):
                optimizer = make(*args, **keywords)
            self.ownership.take_masters()
            optimizer.step = self._ending_step(self._in_phase(STEP, OPTIMIZER_STEP, optimizer.step))
            return optimizer

        module.get_megatron_optimizer = get_megatron_optimizer

    def _ending_step(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Where no loop is known, a step ends with its update, and there the next begins."""

        @functools.wraps(update)
        def observed(*args: Any, **keywords: Any) -> Any:
            result = update(*args, **keywords)
            if self._updates_end_steps:
                self.end_step()
                self.start_step()
            return result

        return observed

    def _hook_data_iterator(self, module: Any) -> None:
        iterator_class = module.RerunDataIterator
        initialize, advance = iterator_class.__init__, iterator_class.__next__

        def __init__(iterator: Any, iterable: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
            self.batches.know_padding(iterable)
            initialize(iterator, iterable, *args, **keywords)

        def __next__(iterator: Any) -> Any:  # noqa: N807
            with self.scopes.on_host(LOADER):
                return advance(iterator)

        iterator_class.__init__, iterator_class.__next__ = __init__, __next__

    def _hook_data_sets(self, module: Any) -> None:
        build = module.setup_data_iterators

        @functools.wraps(build)
        def setup_data_iterators(*args: Any, **keywords: Any) -> Any:
            with self.scopes.on_host(LOADER):
                return build(*args, **keywords)

        module.setup_data_iterators = setup_data_iterators

    def _hook_setup(self, module: Any) -> None:
        prepare = module.setup

        @functools.wraps(prepare)
        def setup(state: Any, *args: Any, **keywords: Any) -> Any:
            self._see_configuration(state.cfg)
            self._tell("building the model")
            self.storages.start()
            if self.gpu is not None:
                self.gpu.start()
            prepared = prepare(state, *args, **keywords)
            self._see_configuration(state.cfg)
            return prepared

        module.setup = setup

    def _hook_train_step(self, module: Any) -> None:
        self._loop_is_known = True
        train = module.train_step

        @functools.wraps(train)
        def train_step(*args: Any, **keywords: Any) -> Any:
            self.start_step()
            result = train(*args, **keywords)
            self.end_step()
            return result

        module.train_step = train_step

    # --- what is seen

    def take_model(self, model: torch.nn.Module) -> None:
        """Label the model's tensors and follow its modules from now on."""
        prefix = f"chunk {self._models}" if self._models else ""
        self._models += 1
        (root, scope), *others = self.ownership.take_model(model, prefix)
        root.register_forward_pre_hook(self._before_model, with_kwargs=True)
        self._follow(root, scope)
        root.register_forward_hook(self._after_model, always_call=True)
        for module, inner in others:
            self._follow(module, inner)
            if hasattr(module, "set_input_tensor"):
                self._receivers.append((module, inner.component))
            if inner.path.endswith(".experts"):
                module.register_forward_pre_hook(self._before_experts)

    def _follow(self, module: torch.nn.Module, scope: Scope) -> None:
        enter, leave = self.scopes.enter, self.scopes.leave
        module.register_forward_pre_hook(lambda *_: enter(scope))
        module.register_forward_hook(lambda *_: leave(scope), always_call=True)

    def _before_model(self, _model: Any, _args: Any, keywords: dict[str, Any]) -> None:
        if not self._loop_is_known and not self._step_is_open:
            self._updates_end_steps = True
            self.start_step()
        if self.scopes.phase != FORWARD and not self.scopes.in_backward_node:
            self.storages.begin_phase(FORWARD, BATCH)
        for name, value in keywords.items():
            block = self.storages.block_of(value) if isinstance(value, torch.Tensor) else None
            if block is not None:
                self.storages.label(value, _component_of_input(name), live_bytes.ACTIVATIONS)
                self._inputs.append(block)
        for receiver, component in self._receivers:
            message = getattr(receiver, "input_tensor", None)
            if isinstance(message, torch.Tensor) and self.storages.block_of(message) is not None:
                self.storages.label(message, component, live_bytes.ACTIVATIONS)
        with self.scopes.on_host(BATCH):
            self.batches.see(keywords, counted=_counts_tokens())

    def _before_experts(self, _experts: Any, args: tuple[Any, ...]) -> None:
        """Rows that reach the routed experts of this rank; those of a replay were counted before.

        On a CPU experts run one after the other, and the busiest needs the most at once. A GPU's run
        as one group, and to read how the rows are shared among them would wait for it.
        """
        rows, *others = args or (None,)
        if not isinstance(rows, torch.Tensor) or not rows.dim() or self.scopes.in_backward_node:
            return
        counts = self.batches.counts
        counts.expert_tokens += rows.shape[0]
        if self.gpu is None and others and isinstance(others[0], torch.Tensor) and others[0].dim() == 1:
            by_expert = others[0].tolist()
            counts.expert_calls += len(by_expert)
            counts.most_expert_tokens = max(counts.most_expert_tokens, *by_expert)
        else:
            counts.expert_calls += 1

    def _after_model(self, *_: Any) -> None:
        self.scopes.stand_on(LOSS)

    def start_step(self) -> None:
        self._step_is_open = True
        self.storages.begin_phase(STEP, OUTSIDE)
        self.scopes.forget_nodes()
        self.storages.live.start_step()
        if self.gpu is not None:
            self.gpu.start_step()
        self.clock.start_step()

    def end_step(self) -> None:
        self._step_is_open = False
        self.storages.begin_phase(STEP, OUTSIDE)
        live = self.storages.live
        self._disown_inputs()
        peak_bytes, retained_bytes = live.step_peak_bytes, live.total_bytes
        if self.gpu is not None:
            peak_bytes, retained_bytes = self.gpu.end_step(live, self.scopes.step)
        kept = {cell: size for cell, size in live.cells.items() if size}
        self.retained = {step: self.retained[step] for step in list(self.retained)[:1]}
        self.retained[self.scopes.step] = kept
        seconds = self.clock.end_step()
        counts = self.batches.take_counts()
        self.steps.append(
            {
                "step": self.scopes.step,
                "peak_bytes": peak_bytes,
                "retained_bytes": retained_bytes,
                "seconds": seconds,
                **vars(counts),
            }
        )
        self.scopes.step += 1
        self._tell(f"{self.scopes.step} steps taken, peak {peak_bytes / 2**20:.1f} MiB")

    def _disown_inputs(self) -> None:
        """Inputs are of the module that they are for; one that outlives its step is kept by none of them."""
        for block in self._inputs:
            if block.alive:
                parts = (((RUNTIME, live_bytes.ACTIVATIONS), block.size_bytes),)
                self.storages.live.move(block, parts)
        self._inputs.clear()

    def _see_configuration(self, configuration: Any) -> None:
        model = getattr(configuration, "model", None)
        self.batches.image_token_id = getattr(model, "image_token_id", None)
        if getattr(model, "moe_router_force_load_balancing", False):
            self._note("moe_router_force_load_balancing is on: routing is not the router's own")
        data_set = type(getattr(configuration, "dataset", None)).__name__
        if "mock" in data_set.lower():
            self.mock_data = data_set
        if self.settings.rank == 0:
            write_json(Path(self.settings.directory) / "config.json", to_plain(configuration))

    def _tell(self, text: str) -> None:
        """For whoever watches the trial; the newest word replaces the one before."""
        if self.settings.rank == 0:
            write_text(Path(self.settings.directory) / "progress.txt", text + "\n")

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
