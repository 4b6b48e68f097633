"""Low-rank adapters: their weights, and the inputs that a frozen linear layer keeps for them.

Section 6 of the formulas page. Certainty A for the gathered input (Qwen3-8B, TP 2, 8,192 tokens: 4.83 GB
computed for regathering, 4.73 measured), C for the shards of the low ranks, which are small.
"""

from __future__ import annotations

from collections.abc import Iterator

from memory_models.breakdown import Component
from memory_models.choices import HasMicroBatch, HasStates
from memory_models.job import Adapters
from memory_models.shapes import AttentionShape, FeedForward, Layer, Mixer
from memory_models.tensors import Kept

#: The linear layer whose input a kept tensor is.
_LINEARS = {
    "mixer norm output": "linear_qkv",
    "attention output": "linear_proj",
    "feed-forward norm output": "linear_fc1",
    "feed-forward activation": "linear_fc2",
    "routed input": "linear_fc1",
    "expert activation": "linear_fc2",
    "shared expert activation": "linear_fc2",
}


def inputs_kept(job: HasMicroBatch, layer: Layer, tensor: Kept) -> tuple[Kept, ...]:
    """What stays of a tensor that only a frozen weight's gradient needs: the input of an adapter does."""
    adapters, linear = job.adapters, _LINEARS.get(tensor.tensor)
    if adapters is None or linear not in adapters.targets:
        return ()
    if tensor.tensor == "feed-forward norm output" and layer.feed_forward is FeedForward.EXPERTS:
        experts = job.text.experts
        if experts is None or not experts.shared_size:
            return ()  # routed experts read the dispatched rows instead
    gathered = tensor.tensor.endswith("norm output") and not adapters.regather
    times = job.layout.sequence_shard if gathered else 1
    size = tensor.bytes * times
    formula = f"{times}*{tensor.formula}" if times > 1 else tensor.formula
    return (
        Kept(tensor.component, tensor.tensor, formula, size, tensor.module, offload=tensor.offload),
        Kept(tensor.component, "adapter low ranks", "a*N*r", _low_rank_bytes(job, adapters)),
    )


def _low_rank_bytes(job: HasMicroBatch, adapters: Adapters) -> int:
    return job.precision.activation_bytes * job.tokens * adapters.rank


def adapter_elements(job: HasStates, layer: Layer) -> Iterator[tuple[Component, str, int, bool]]:
    """(component, name, elements of the whole layer's adapters, whether they belong to routed experts)."""
    adapters, text = job.adapters, job.text
    if adapters is None:
        return
    rank, hidden, inner = adapters.rank, text.hidden_size, 1 + text.activation.gated
    mixer = 0
    if layer.mixer is Mixer.ATTENTION and isinstance(text.attention, AttentionShape):
        shape = text.attention
        if "linear_qkv" in adapters.targets:
            mixer += rank * (hidden + shape.query_size + 2 * shape.key_size)
        if "linear_proj" in adapters.targets:
            mixer += rank * (shape.query_size + hidden)

    def feed_forward(width: int) -> int:
        first = rank * (hidden + inner * width) if "linear_fc1" in adapters.targets else 0
        return first + (rank * (width + hidden) if "linear_fc2" in adapters.targets else 0)

    if layer.feed_forward is FeedForward.DENSE:
        mixer += feed_forward(text.feed_forward_size)
    if mixer:
        yield Component.DECODER, "attention and dense adapters", mixer, False
    if layer.feed_forward is FeedForward.EXPERTS and text.experts is not None:
        # A grouped linear layer has one adapter for all the experts that it holds.
        routed = feed_forward(text.experts.size) * job.layout.expert
        yield Component.EXPERTS, "expert adapters", routed, True
        if text.experts.shared_size:
            shared = feed_forward(text.experts.shared_size)
            yield Component.EXPERTS, "shared expert adapters", shared, False
