"""One rank of a world that is not there: process groups of the asked size, and collectives that move nothing.

Every other rank is taken to be like this one: a gathered count is this rank's
count, once for each member. Buffers are made by the caller, as for real
collectives, so that their bytes are seen; nothing is written to them but the
values that steer sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import _disable_current_modes

from firstbad_probe.dry_run.known_values import know, known
from firstbad_probe.patches import Patches

BACKEND = "fake"


class _Done:
    """The handle of an operation that is already over."""

    def wait(self, *_: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install(patches: Patches) -> None:
    """Replace the creation of process groups and every collective of torch.distributed."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    make_world, make_group = dist.init_process_group, dist.new_group

    def init_process_group(backend: Any = None, *_: Any, **keywords: Any) -> None:
        patches.use(f"dry run: a fake world instead of {backend or 'the default backend'}")
        make_world(
            backend=BACKEND,
            store=FakeStore(),  # type: ignore[no-untyped-call]
            rank=keywords["rank"],
            world_size=keywords["world_size"],
        )

    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        return make_group(ranks=ranks, backend=BACKEND)

    dist.init_process_group, dist.new_group = init_process_group, new_group
    _collectives(patches)


def _collectives(patches: Patches) -> None:
    def put(name: str, function: Callable[..., Any]) -> None:
        for holder in (dist, distributed_c10d):  # torch compares some of them with its own names
            if hasattr(holder, name):
                setattr(holder, name, function)

    def replace(name: str, answer: Callable[..., None]) -> None:
        def collective(*args: Any, async_op: bool = False, **keywords: Any) -> Any:
            patches.use("dry run: collectives move nothing")
            answer(*args, **keywords)
            return _Done() if async_op else None

        put(name, collective)

    def nothing(*_: Any, **__: Any) -> None: ...

    def gather_into(
        output: torch.Tensor | None = None, input: torch.Tensor | None = None, *_: Any, **keywords: Any
    ) -> None:
        target = output if output is not None else keywords["output_tensor"]
        _repeat(target, input if input is not None else keywords["input_tensor"])

    def gather_list(outputs: list[torch.Tensor], tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        for output in outputs:
            _repeat(output, tensor)

    def gather_objects(outputs: list[Any], item: Any, *_: Any, **__: Any) -> None:
        outputs[:] = [item] * len(outputs)

    def exchange(output: torch.Tensor, input: torch.Tensor, *_: Any, **__: Any) -> None:
        if output.shape == input.shape:
            _repeat(output, input)

    for name in (
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all",
        "barrier",
        "monitored_barrier",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "_reduce_scatter_base",
        "scatter",
    ):
        replace(name, nothing)
    replace("all_gather_into_tensor", gather_into)
    replace("_all_gather_base", gather_into)
    replace("all_gather", gather_list)
    replace("all_gather_object", gather_objects)
    replace("all_to_all_single", exchange)
    for name in ("isend", "irecv", "send", "recv"):
        put(name, lambda *_, **__: _Done())
    put("batch_isend_irecv", lambda operations: [_Done() for _ in operations])


def _repeat(output: torch.Tensor, input: torch.Tensor) -> None:
    value = known(input)
    if value is not None and input.numel():
        copies = output.numel() // input.numel()
        with _disable_current_modes():
            know(output, value.reshape(-1).repeat(copies).view(output.shape))
