"""What flash or fused attention keeps: its inputs, its output, and one fp32 figure a query and head.

Source: transformer_engine/pytorch/attention/dot_product_attention of release 2.9; certainty B. Not
modelled: the kernels' own workspaces. Under context parallelism two buffers of the neighbour's keys and
values are held while the ring turns (certainty B).
"""

from __future__ import annotations

from typing import Any

import torch

from firstbad_probe.dry_run.fused.bases import Module


class Attention(torch.autograd.Function):
    """query [s, b, heads, d] or [t, heads, d] to [s, b, heads x d]; keys and values have their own heads."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ring: int
    ) -> torch.Tensor:
        if ring > 1:
            torch.empty_like(key), torch.empty_like(value), torch.empty_like(key), torch.empty_like(value)
        width = query.shape[-2] * value.shape[-1]
        result = query.new_empty((*query.shape[:-2], width))
        figures = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, result, figures)
        return result

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


class DotProductAttention(Module):
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        tp_size: int = 1,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.num_attention_heads, self.num_gqa_groups = num_attention_heads, num_gqa_groups
        self.hidden_size_per_attention_head = kv_channels
        self.qkv_format, self.attn_mask_type = qkv_format, attn_mask_type
        self.layer_number, self.attention_type = layer_number, attention_type
        self.tp_size, self.tp_group, self.cp_group = tp_size, tp_group, cp_group

    def set_context_parallel_group(self, cp_group: Any, *_: Any, **__: Any) -> None:
        self.cp_group = cp_group

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> Any:
        ring = self.cp_group.size() if hasattr(self.cp_group, "size") else 1
        return Attention.apply(query_layer, key_layer, value_layer, ring)


class Rotation(torch.autograd.Function):
    """Rotary embedding as one kernel: a new tensor of the input's shape; the angles are kept."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(angles)
        return torch.empty_like(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.empty_like(gradients[0]), None


def apply_rotary_pos_emb(t: torch.Tensor, freqs: torch.Tensor, *_: Any, **__: Any) -> Any:
    return Rotation.apply(t, freqs)


class SplitAlongDim(torch.autograd.Function):
    """Views in forward; backward joins the gradients into one tensor."""

    @staticmethod
    def forward(ctx: Any, mixed: torch.Tensor, dimension: int, sections: Any, squeeze: bool = False) -> Any:
        ctx.shape = mixed.shape
        parts = torch.split(mixed, sections, dim=dimension)
        return tuple(part.squeeze(dimension) for part in parts) if squeeze else parts

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0].new_empty(ctx.shape), None, None, None
