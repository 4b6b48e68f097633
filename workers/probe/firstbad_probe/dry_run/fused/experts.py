"""What Transformer Engine's permutation, router and loss kernels keep.

Source: transformer_engine/pytorch/{permutation,router,cross_entropy}.py of release 2.9; certainty B.
Tokens n, experts E, hidden h, rows r = tokens times chosen experts.
"""

from __future__ import annotations

from typing import Any

import torch

from firstbad_probe.dry_run.known_values import known


def _row_map(routing_map: torch.Tensor) -> torch.Tensor:
    """int32 [n, 2 E + 1]: where each token's rows are."""
    return torch.empty((routing_map.shape[0], 2 * routing_map.shape[1] + 1), dtype=torch.int32)


def _rows(routing_map: torch.Tensor, asked: int) -> int:
    if asked is not None and asked > 0:
        return int(asked)
    value = known(routing_map)
    return routing_map.shape[0] if value is None else int(value.sum())


class Permutation(torch.autograd.Function):
    """[n, h] to [r, h], with the probabilities [n, E] to [r] where they travel along."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, probs: torch.Tensor | None, routing_map: torch.Tensor, rows: int
    ) -> Any:
        row_map = _row_map(routing_map)
        ctx.save_for_backward(row_map)
        ctx.shapes = tensor.shape, None if probs is None else (probs.shape, probs.dtype)
        ctx.mark_non_differentiable(row_map)
        output = tensor.new_empty((rows, tensor.shape[-1]))
        permuted = None if probs is None else probs.new_empty((rows,))
        return output, permuted, row_map

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        shape, probs = ctx.shapes
        at_probs = None if probs is None else gradients[0].new_empty(probs[0], dtype=probs[1])
        return gradients[0].new_empty(shape), at_probs, None, None


def moe_permute(
    inp: torch.Tensor,
    routing_map: torch.Tensor,
    num_out_tokens: int = -1,
    max_token_num: int = -1,
    map_type: str = "mask",
) -> Any:
    output, _, row_map = Permutation.apply(inp, None, routing_map, _rows(routing_map, num_out_tokens))
    return output, row_map


def moe_permute_with_probs(
    inp: torch.Tensor, probs: torch.Tensor, routing_map: torch.Tensor, num_out_tokens: int = -1
) -> Any:
    return Permutation.apply(inp, probs, routing_map, _rows(routing_map, num_out_tokens))


class Reunion(torch.autograd.Function):
    """[r, h] back to [n, h]; where probabilities merge the rows, the rows are kept for their gradient."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, row_map: torch.Tensor, merging: torch.Tensor | None, shape: Any
    ) -> torch.Tensor:
        ctx.save_for_backward(row_map, *(() if merging is None else (rows, merging)))
        ctx.shape = rows.shape
        return rows.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, *merged = ctx.saved_tensors
        at_merging = torch.empty_like(merged[1]) if merged else None
        return gradients[0].new_empty(ctx.shape), None, at_merging, None


def moe_unpermute(
    inp: torch.Tensor,
    row_id_map: torch.Tensor,
    merging_probs: torch.Tensor | None = None,
    restore_shape: Any = None,
    map_type: str = "mask",
    probs: torch.Tensor | None = None,
    **_: Any,
) -> Any:
    merging = merging_probs if merging_probs is not None else probs
    shape = restore_shape if restore_shape is not None else (row_id_map.shape[0], inp.shape[-1])
    return Reunion.apply(inp, row_id_map, merging, shape)


class Sorting(torch.autograd.Function):
    """Chunks of rows in another order: [r, h] to [r, h]."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, probs: torch.Tensor | None) -> Any:
        ctx.save_for_backward(torch.empty((rows.shape[0],), dtype=torch.int32))
        ctx.probs = None if probs is None else (probs.shape, probs.dtype)
        return torch.empty_like(rows), None if probs is None else torch.empty_like(probs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        at_probs = None if ctx.probs is None else gradients[0].new_empty(ctx.probs[0], dtype=ctx.probs[1])
        return torch.empty_like(gradients[0]), at_probs


def moe_sort_chunks_by_index(inp: torch.Tensor, split_sizes: Any, sorted_index: Any) -> Any:
    return Sorting.apply(inp, None)[0]


def moe_sort_chunks_by_index_with_probs(
    inp: torch.Tensor, probs: torch.Tensor, split_sizes: Any, sorted_index: Any
) -> Any:
    return Sorting.apply(inp, probs)


class Choice(torch.autograd.Function):
    """Router scores [n, E] to probabilities [n, E] and a map [n, E] of the chosen experts."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, chosen: int) -> Any:
        routing_map = torch.zeros_like(logits, dtype=torch.bool)
        routing_map = routing_map.scatter(1, torch.topk(logits, chosen, dim=1)[1], True)
        ctx.save_for_backward(routing_map, torch.empty_like(logits))
        ctx.mark_non_differentiable(routing_map)
        return torch.empty_like(logits), routing_map

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.empty_like(gradients[0]), None


def fused_topk_with_score_function(logits: torch.Tensor, topk: int, *_: Any, **__: Any) -> Any:
    return Choice.apply(logits, topk)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.empty_like(logits))
        return torch.empty_like(logits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.empty_like(gradients[0])


def fused_compute_score_for_moe_aux_loss(logits: torch.Tensor, topk: int, *_: Any, **__: Any) -> Any:
    routing_map, _ = Choice.apply(logits, topk)[::-1]
    return routing_map, _Scores.apply(logits)


class _AuxiliaryLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probs: torch.Tensor) -> torch.Tensor:
        ctx.shape, ctx.dtype = probs.shape, probs.dtype
        return probs.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].new_empty(ctx.shape, dtype=ctx.dtype)


def fused_moe_aux_loss(probs: torch.Tensor, *_: Any, **__: Any) -> Any:
    return _AuxiliaryLoss.apply(probs)


class CrossEntropy(torch.autograd.Function):
    """Logits [s, b, V/t]: their gradient is written over them: they live on, and nothing joins them."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = logits.contiguous()
        ctx.save_for_backward(logits.detach())
        return labels.new_empty(labels.shape, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        (written,) = ctx.saved_tensors
        return written, None


def parallel_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *_: Any, **__: Any) -> Any:
    return CrossEntropy.apply(logits, labels)
