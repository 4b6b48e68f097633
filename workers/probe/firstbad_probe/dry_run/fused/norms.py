"""What Transformer Engine's norms keep: the input, the weights and one or two fp32 figures a row.

Source: transformer_engine/pytorch/module/{layernorm,rmsnorm}.py of release 2.9; certainty B.
"""

from __future__ import annotations

from typing import Any

import torch

from firstbad_probe.dry_run.fused.bases import Module, parameter


class Norm(torch.autograd.Function):
    """Input [..., hidden] to output of the same shape."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        rows = tensor.numel() // tensor.shape[-1]
        figures = [tensor.new_empty((rows,), dtype=torch.float32)]
        if bias is not None:  # LayerNorm keeps the mean too
            figures.append(torch.empty_like(figures[0]))
        ctx.save_for_backward(tensor, weight, *figures)
        ctx.bias = bias
        return torch.empty_like(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        tensor, weight, *_ = ctx.saved_tensors
        at_bias = None if ctx.bias is None else torch.empty_like(ctx.bias)
        below = torch.empty_like(tensor) if ctx.needs_input_grad[0] else None
        return below, torch.empty_like(weight) if ctx.needs_input_grad[1] else None, at_bias


class _Norm(Module):
    has_bias = False

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        size = hidden_size if hidden_size is not None else normalized_shape
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        self.weight = parameter((size,), params_dtype)
        self.weight.sequence_parallel = bool(sequence_parallel)  # type: ignore[attr-defined]
        self.bias = parameter((size,), params_dtype) if self.has_bias else None
        if self.bias is not None:
            self.bias.sequence_parallel = bool(sequence_parallel)  # type: ignore[attr-defined]

    def forward(self, tensor: torch.Tensor) -> Any:
        return Norm.apply(tensor, self.weight, self.bias)


class RMSNorm(_Norm):
    pass


class LayerNorm(_Norm):
    has_bias = True
