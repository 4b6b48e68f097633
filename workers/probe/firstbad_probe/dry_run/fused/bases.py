"""What all layers that stand in for Transformer Engine's share."""

from __future__ import annotations

from typing import Any

import torch


class NotSimulated(RuntimeError):
    """A dry run was asked for what it has no stand-in for; nothing else failed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"dry run: {what} is not simulated; run it on a GPU, or take the estimate")


class Module(torch.nn.Module):
    """transformer_engine.pytorch.module.base.TransformerEngineBaseModule, as far as Megatron looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.fp8_initialized = False
        self.fp8_meta: dict[str, Any] = {}

    def set_tensor_parallel_group(self, group: Any) -> None:
        self.tp_group = group

    def get_extra_state(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None: ...


def parameter(shape: tuple[Any, ...], dtype: torch.dtype | None) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype or torch.get_default_dtype()))


def split(weight: torch.nn.Parameter, dimension: int) -> None:
    """Mark a weight as this rank's part, as Megatron's own layers do."""
    weight.tensor_model_parallel = True  # type: ignore[attr-defined]
    weight.partition_dim = dimension  # type: ignore[attr-defined]
    weight.partition_stride = 1  # type: ignore[attr-defined]
