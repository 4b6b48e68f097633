"""The CPU platform: what lets unmodified CUDA training code run on a CPU.

Here live stand-ins for entry points and packages that need a GPU, each named
and counted. Nothing here measures. What is not covered: Transformer Engine,
fused and grouped kernels, flash attention and NCCL do not run; the model is
built from Megatron Core's local, unfused layers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.patches import Patches
from firstbad_probe.platform import entry_points, megatron, stand_ins

__all__ = ["install"]


def install(
    patches: Patches,
    callbacks: ImportCallbacks,
    *,
    local_world_size: int,
    to_device: Callable[[torch.Tensor], torch.Tensor],
    local_layers: bool = True,
) -> None:
    """Apply every patch that can be applied now, and arrange for the rest at import time.

    `to_device` answers the tensor that a GPU would hold for the given one. Without
    `local_layers` the job keeps its Transformer Engine layers and fused kernels: a dry run
    stands in for those itself.
    """
    entry_points.install(patches, local_world_size=local_world_size, to_device=to_device)
    stand_ins.install(patches, callbacks)
    megatron.install(patches, callbacks, local_layers=local_layers)
