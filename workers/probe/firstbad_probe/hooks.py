"""The places in torch, Megatron Core and Megatron Bridge at which the observer is told something.

Each hook is put in place when its module is imported, by an attribute that must be there; a release
without it gives a note, not a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from firstbad_probe.components import (
    BATCH,
    DATA,
    GRADIENT_SYNC,
    LOSS,
    MESSAGES,
    OPTIMIZER_STEP,
    OUTSIDE,
    RUNTIME,
    Scope,
)
from firstbad_probe.counted_scopes import CountedScopes
from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.observer import Observer
from firstbad_probe.scopes import BACKWARD, FORWARD, STEP

LOADER = Scope(RUNTIME, DATA, "data loader")


class Hooks:
    """Installs the hooks of one observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def watch(self, callbacks: ImportCallbacks) -> None:
        for module_name, hook in (
            ("megatron.core.distributed.distributed_data_parallel", self._hook_wrapper),
            ("megatron.core.distributed.fsdp.mcore_fsdp_adapter", self._hook_sharding),
            ("megatron.core.distributed.torch_fully_sharded_data_parallel", self._hook_sharding),
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
            if self._observer.scopes.phase != BACKWARD:
                self._observer.storages.begin_phase(BACKWARD, LOSS)
            return backward(*args, **keywords)

        torch.autograd.backward = observed_backward
        if self._observer.watch is not None:
            self._hook_choice_of_device()
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)

    def _hook_choice_of_device(self) -> None:
        """A job names its device early; asking CUDA any sooner would make a context on another one."""
        set_device = torch.cuda.set_device

        @functools.wraps(set_device)
        def chosen(device: Any) -> None:
            set_device(device)
            self._observer.choose_device()

        torch.cuda.set_device = chosen

    def _before_update(self, *_: Any) -> None:
        if self._observer.scopes.phase != STEP:
            self._observer.storages.begin_phase(STEP, OPTIMIZER_STEP)

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._observer.ownership.take_states(optimizer)
        if isinstance(self._observer.scopes, CountedScopes):
            self._observer.scopes.close()  # before the job gives its gradients back

    def _hook_wrapper(self, module: Any) -> None:
        self._hook_wrapper_class(module.DistributedDataParallel, split=True)

    def _hook_sharding(self, module: Any) -> None:
        """Megatron's own FSDP and torch's, as Megatron wraps it: shards take the place of the parameters."""
        for name in ("FullyShardedDataParallel", "TorchFullyShardedDataParallel"):
            wrapper_class = getattr(module, name, None)
            if isinstance(wrapper_class, type):
                self._hook_wrapper_class(wrapper_class, split=False)

    def _hook_wrapper_class(self, wrapper_class: Any, *, split: bool) -> None:
        initialize = wrapper_class.__init__

        @functools.wraps(initialize)
        def __init__(wrapper: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
            self._observer.storages.start()
            wrapped = keywords.get("module")
            if wrapped is None:
                wrapped = next(item for item in args if isinstance(item, torch.nn.Module))
            self._observer.take_model(wrapped)
            initialize(wrapper, *args, **keywords)
            if split:
                self._observer.ownership.take_wrapper(wrapper)
            else:
                self._observer.take_shards(wrapped)

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
            owner = self._observer.ownership.dominant(parameters)
            with self._observer.scopes.inside(
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
            with self._observer.scopes.inside(MESSAGES):
                return communicate(*args, **keywords)

        holder._communicate = observed

    def _in_phase(self, phase: str, ground: Scope, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def observed(*args: Any, **keywords: Any) -> Any:
            self._observer.storages.begin_phase(phase, ground)
            result = function(*args, **keywords)
            if phase == STEP:  # what the job does next, between two of these, is neither's time
                self._observer.scopes.stand_on(OUTSIDE)
            return result

        return observed

    def _hook_optimizer(self, module: Any) -> None:
        make = module.get_megatron_optimizer

        @functools.wraps(make)
        def get_megatron_optimizer(*args: Any, **keywords: Any) -> Any:
            with self._observer.scopes.inside(OPTIMIZER_STEP):
                optimizer = make(*args, **keywords)
            self._observer.ownership.take_masters()
            optimizer.step = self._ending_step(self._in_phase(STEP, OPTIMIZER_STEP, optimizer.step))
            return optimizer

        module.get_megatron_optimizer = get_megatron_optimizer

    def _ending_step(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """Where no loop is known, a step ends with its update, and there the next begins."""

        @functools.wraps(update)
        def observed(*args: Any, **keywords: Any) -> Any:
            result = update(*args, **keywords)
            if self._observer.updates_end_steps:
                self._observer.end_step()
                self._observer.start_step()
            return result

        return observed

    def _hook_data_iterator(self, module: Any) -> None:
        iterator_class = module.RerunDataIterator
        initialize, advance = iterator_class.__init__, iterator_class.__next__

        def __init__(iterator: Any, iterable: Any, *args: Any, **keywords: Any) -> None:  # noqa: N807
            self._observer.batches.know_padding(iterable)
            initialize(iterator, iterable, *args, **keywords)

        def __next__(iterator: Any) -> Any:  # noqa: N807
            with self._observer.scopes.on_host(LOADER):
                return advance(iterator)

        iterator_class.__init__, iterator_class.__next__ = __init__, __next__

    def _hook_data_sets(self, module: Any) -> None:
        build = module.setup_data_iterators

        @functools.wraps(build)
        def setup_data_iterators(*args: Any, **keywords: Any) -> Any:
            with self._observer.scopes.on_host(LOADER):
                return build(*args, **keywords)

        module.setup_data_iterators = setup_data_iterators

    def _hook_setup(self, module: Any) -> None:
        prepare = module.setup

        @functools.wraps(prepare)
        def setup(state: Any, *args: Any, **keywords: Any) -> Any:
            self._observer.see_configuration(state.cfg)
            self._observer.tell("building the model")
            self._observer.storages.start()
            prepared = prepare(state, *args, **keywords)
            self._observer.see_configuration(state.cfg)
            return prepared

        module.setup = setup

    def _hook_train_step(self, module: Any) -> None:
        self._observer.loop_is_known = True
        train = module.train_step

        @functools.wraps(train)
        def train_step(*args: Any, **keywords: Any) -> Any:
            self._observer.start_step()
            result = train(*args, **keywords)
            self._observer.end_step()
            return result

        module.train_step = train_step
