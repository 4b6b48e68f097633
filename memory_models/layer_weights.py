"""Weights of one layer's parts on one rank: token mixers and experts.

Element counts by shard; parameters.py asks for them and places them on stages.
"""

from __future__ import annotations

from typing import Protocol

from memory_models.breakdown import Component
from memory_models.shapes import AttentionShape, GatedDeltaShape, MambaShape, Norm, TextShape


class Add(Protocol):
    """What a part of a layer hands each group of its weights to."""

    def __call__(
        self,
        component: Component,
        name: str,
        formula: str,
        elements: int,
        shards: int = 1,
        *,
        experts: bool = False,
    ) -> None: ...


def share(elements: int, shards: int, what: str) -> int:
    """Elements on one of ``shards`` ranks; ValueError where the real code would refuse to split."""
    if elements % shards:
        raise ValueError(f"{what} ({elements}) does not divide over {shards} ranks")
    return elements // shards


def norm_weights(text: TextShape, size: int) -> int:
    """Elements of a norm over ``size`` channels."""
    return size if text.norm is Norm.RMS else 2 * size


def attention_weights(text: TextShape, tensor: int, add: Add) -> None:
    """Grouped-query or latent attention."""
    hidden, shape = text.hidden_size, text.attention
    if isinstance(shape, AttentionShape):
        groups = max(
            shape.groups, tensor
        )  # key and value heads are replicated where there are fewer than ranks
        gate = 2 if shape.output_gate else 1
        queries = share(shape.query_size, tensor, "the query size")
        keys = share(groups * shape.head_size, tensor, "the key size")
        replicated = groups // shape.groups
        add(Component.DECODER, "query", "h*nh*d/t", hidden * queries * gate, tensor)
        add(Component.DECODER, "key and value", "2*h*nkv*d/t", 2 * hidden * keys, tensor // replicated)
        add(Component.DECODER, "attention output", "nh*d*h/t", queries * hidden, tensor)
        if shape.qkv_bias or text.linear_bias:
            add(Component.DECODER, "query bias", "nh*d/t", queries * gate, tensor)
            add(Component.DECODER, "key and value bias", "2*nkv*d/t", 2 * keys, tensor // replicated)
        if text.linear_bias:
            add(Component.DECODER, "attention output bias", "h", hidden)
        if shape.qk_norm:
            add(Component.DECODER, "query and key norms", "2d", 2 * norm_weights(text, shape.head_size))
        return
    heads = share(shape.heads, tensor, "the attention heads")
    per_head = shape.head_size + shape.rotary_size
    if shape.query_rank is None:
        add(Component.DECODER, "query", "h*nh*(d+r)/t", hidden * heads * per_head, tensor)
    else:
        add(Component.DECODER, "query down", "h*rq", hidden * shape.query_rank)
        add(Component.DECODER, "query up", "rq*nh*(d+r)/t", shape.query_rank * heads * per_head, tensor)
    add(
        Component.DECODER,
        "key and value down",
        "h*(rkv+r)",
        hidden * (shape.key_value_rank + shape.rotary_size),
    )
    add(
        Component.DECODER,
        "key and value up",
        "rkv*nh*(d+v)/t",
        shape.key_value_rank * heads * (shape.head_size + shape.value_size),
        tensor,
    )
    add(Component.DECODER, "attention output", "nh*v*h/t", heads * shape.value_size * hidden, tensor)
    if shape.norm:
        add(
            Component.DECODER,
            "low-rank norms",
            "rq+rkv",
            norm_weights(text, (shape.query_rank or 0) + shape.key_value_rank),
        )


def mamba_weights(text: TextShape, tensor: int, add: Add) -> None:
    """A Mamba-2 mixer."""
    shape, hidden = text.mamba, text.hidden_size
    assert isinstance(shape, MambaShape)
    inner = share(shape.inner_size, tensor, "the inner size of Mamba")
    states = share(max(shape.groups, tensor), tensor, "the groups of Mamba") * shape.state_size
    heads = share(shape.heads, tensor, "the heads of Mamba")
    mixed = inner + 2 * states
    add(
        Component.DECODER,
        "Mamba input",
        "h*(2*inner+2*g*state+nh)/t",
        hidden * (2 * inner + 2 * states + heads),
        tensor,
    )
    add(
        Component.DECODER,
        "Mamba convolution",
        "(inner+2*g*state)*(k+1)/t",
        mixed * (shape.convolution + 1),
        tensor,
    )
    add(Component.DECODER, "Mamba scalars and norm", "(3*nh+inner)/t", 3 * heads + inner, tensor)
    add(Component.DECODER, "Mamba output", "inner*h/t", inner * hidden, tensor)


def gated_delta_weights(text: TextShape, tensor: int, add: Add) -> None:
    """A gated delta-rule mixer."""
    shape, hidden = text.gated_delta, text.hidden_size
    assert isinstance(shape, GatedDeltaShape)
    keys = share(shape.key_heads * shape.key_size, tensor, "the keys of gated delta")
    values = share(shape.value_heads * shape.value_size, tensor, "the values of gated delta")
    heads = share(shape.value_heads, tensor, "the value heads of gated delta")
    mixed = 2 * keys + values
    add(
        Component.DECODER,
        "gated delta input",
        "h*(2*k+2*v+2*nv)/t",
        hidden * (mixed + values + 2 * heads),
        tensor,
    )
    add(Component.DECODER, "gated delta convolution", "(2k+v)*c/t", mixed * shape.convolution, tensor)
    add(Component.DECODER, "gated delta scalars", "2*nv/t", 2 * heads, tensor)
    add(Component.DECODER, "gated delta norm", "dv", shape.value_size)
    add(Component.DECODER, "gated delta output", "v*h/t", values * hidden, tensor)


def expert_weights(text: TextShape, tensor: int, expert: int, expert_tensor: int, add: Add) -> None:
    """Router, routed and shared experts."""
    experts, hidden = text.experts, text.hidden_size
    assert experts is not None
    matrices = 2 + text.activation.gated
    inner = experts.latent_size or hidden
    width = share(experts.size, expert_tensor, "the width of an expert")
    count = share(experts.count, expert, "the number of experts")
    add(Component.EXPERTS, "router", "h*E", hidden * experts.count)
    add(
        Component.EXPERTS,
        "routed experts",
        f"E/ep*{matrices}*h*f/etp",
        count * matrices * inner * width,
        expert * expert_tensor,
        experts=True,
    )
    if text.linear_bias:
        add(
            Component.EXPERTS,
            "expert biases in",
            "E/ep*f/etp",
            count * (matrices - 1) * width,
            expert * expert_tensor,
            experts=True,
        )
        add(Component.EXPERTS, "expert biases out", "E/ep*h", count * inner, expert, experts=True)
    if experts.latent_size:
        add(Component.EXPERTS, "latent projections", "2*h*latent", 2 * hidden * experts.latent_size)
    if experts.shared_size:
        shared = share(experts.shared_size, tensor, "the shared expert's size")
        add(Component.EXPERTS, "shared expert", f"{matrices}*h*fs/t", matrices * hidden * shared, tensor)
        if text.linear_bias:
            add(Component.EXPERTS, "shared expert bias in", "fs/t", (matrices - 1) * shared, tensor)
            add(Component.EXPERTS, "shared expert bias out", "h", hidden)
        if experts.shared_gate:
            add(Component.EXPERTS, "shared expert gate", "h", hidden)
