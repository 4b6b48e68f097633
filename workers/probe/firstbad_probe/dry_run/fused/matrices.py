"""What Transformer Engine's linear layers keep and need, without a matrix product.

Shapes: input [..., in], weight [out, in]. Kept for backward: the input (this
rank's part of the sequence, as it came) unless the weights are frozen, and the
weights. Source: transformer_engine/pytorch/module/{linear,layernorm_linear,
grouped_linear}.py of release 2.9; certainty B (read in code).
"""

from __future__ import annotations

from typing import Any

import torch

#: Gradients that stand for "already added to main_grad", by shape and type, kept for the process's life.
_dummies: dict[tuple[tuple[int, ...], torch.dtype], torch.Tensor] = {}


def dummy_gradient(shape: Any, dtype: torch.dtype, zero: bool = False) -> torch.Tensor:
    """Transformer Engine's `get_dummy_wgrad`: one cached tensor of each weight shape."""
    del zero
    key = (tuple(shape), dtype)
    if key not in _dummies:
        _dummies[key] = torch.empty(key[0], dtype=dtype)
    return _dummies[key].detach()


def weight_gradient(weight: torch.Tensor, accumulates: bool) -> torch.Tensor | None:
    """The gradient of a weight as autograd is given it; an accumulating product writes main_grad itself."""
    if not weight.requires_grad:
        return None
    if accumulates and hasattr(weight, "main_grad"):
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        return dummy_gradient(weight.shape, weight.dtype)
    return torch.empty_like(weight)


def along_first(tensor: torch.Tensor, factor: int) -> torch.Tensor:
    """The gathered sequence: a buffer that is ``factor`` times as long."""
    return tensor.new_empty((tensor.shape[0] * factor, *tensor.shape[1:]))


class Product(torch.autograd.Function):
    """Input times weight; gathers or scatters the sequence where the layer is split over ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        gathers: int,
        scatters: int,
        accumulates: bool,
    ) -> torch.Tensor:
        """``gathers``, ``scatters``: ranks that the sequence is spread over before, or after; 1: not."""
        ctx.save_for_backward(tensor if weight.requires_grad else None, weight, bias)
        ctx.gathers, ctx.scatters, ctx.accumulates = gathers, scatters, accumulates
        ctx.shape = tensor.shape
        whole = along_first(tensor, gathers) if gathers > 1 else tensor
        result = whole.new_empty((*whole.shape[:-1], weight.shape[0]), dtype=weight.dtype)
        if scatters > 1:
            return result.new_empty((result.shape[0] // scatters, *result.shape[1:]))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        tensor, weight, bias = ctx.saved_tensors
        if ctx.scatters > 1:
            gradient = along_first(gradient, ctx.scatters)
        below = None
        if ctx.needs_input_grad[0]:
            below = gradient.new_empty((*gradient.shape[:-1], weight.shape[1]))
            if ctx.gathers > 1:
                below = below.new_empty(ctx.shape)
        if tensor is not None and ctx.gathers > 1:
            tensor = along_first(tensor, ctx.gathers)  # for the weights' gradient
        at_weight = weight_gradient(weight, ctx.accumulates)
        at_bias = torch.empty_like(bias) if bias is not None and bias.requires_grad else None
        return below, at_weight, at_bias, None, None, None


class GroupedProduct(torch.autograd.Function):
    """Rows [rows, in] sorted by expert, times that expert's weight [out, in]."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, rows: int, accumulates: bool, biases: int, *weights: torch.Tensor
    ) -> torch.Tensor:
        """``weights`` holds the weights of all experts and then ``biases`` biases."""
        matrices = weights[: len(weights) - biases]
        trained = any(weight.requires_grad for weight in matrices)
        ctx.save_for_backward(tensor if trained else None, *weights)
        ctx.accumulates, ctx.biases, ctx.width = accumulates, biases, tensor.shape[-1]
        return tensor.new_empty((rows, matrices[0].shape[0]))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        _, *weights = ctx.saved_tensors
        below = gradient.new_empty((gradient.shape[0], ctx.width)) if ctx.needs_input_grad[0] else None
        count = len(weights) - ctx.biases
        at_weights = [weight_gradient(weight, ctx.accumulates) for weight in weights[:count]]
        at_biases = [torch.empty_like(bias) if bias.requires_grad else None for bias in weights[count:]]
        return below, None, None, None, *at_weights, *at_biases
