"""The backward pass of each half of a layer: what has gone by then, what is computed again, what passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from memory_models import decoder, experts, unfused, unfused_backward
from memory_models.breakdown import Component
from memory_models.choices import MicroBatch
from memory_models.job import Backend, Granularity, Implementation
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import NOTHING, Bundle, Half, Kept
from memory_models.treatments import (
    EMPTY,
    ENTERING,
    Halves,
    Treatment,
    counted,
    freed,
    group_size,
    outlives_backward,
    replayed,
)


@dataclass(frozen=True, kw_only=True)
class HalfBackward:
    """The backward pass of half a layer: what has gone by then, what is computed again, what passes."""

    name: str
    gone: Bundle  #: kept tensors of this micro-batch that later halves have used up
    relieved: Bundle  #: the same, where a dispatcher keeps those of a later micro-batch instead
    replay: Bundle
    gradients: Bundle


def backward_halves(
    job: MicroBatch,
    runs: list[tuple[Treatment, int]],
    halves: Mapping[Layer, Halves],
    stays: Mapping[Treatment, Halves],
    output: Bundle,
) -> tuple[HalfBackward, ...]:
    """Backward goes from the last layer to the first: the last of each kind meets the most kept tensors.

    Where something outlives its layer's backward, the first of a kind may meet more.
    """
    found: list[HalfBackward] = []
    layers = sum(count for _, count in runs)
    for treatment, later in _turns(job, runs):
        layer = treatment.layer
        mixer, feed_forward = halves[layer]
        if treatment.full:
            group = group_size(job, layers)
            again, before = _group_again(job, layer, freed(mixer), freed(feed_forward), group)
        elif treatment.away:  # comes back before its backward
            again, before = [(mixer, 1), (feed_forward, 1)], [(mixer, 1)]
        else:
            again = [(_in_use(job, layer, replayed(job, layer, feed_forward)), 1)]
            before = [(_unspent(job, replayed(job, layer, mixer)), 1)]
        gone = Bundle([(freed(half), count) for half, count in counted(later, stays)]) + output
        kept_mixer, kept_feed_forward = stays[treatment]
        relieved = Bundle([(_indices(half), count) for half, count in counted(later, stays)])
        found.append(
            HalfBackward(
                name="feed-forward backward",
                gone=gone + Bundle([(_used(job, layer, kept_feed_forward), 1)]),
                relieved=relieved,
                replay=Bundle(again) + _replay_held(job, treatment, mixer=False),
                gradients=_feed_forward_gradients(job, layer) + _incoming(job, treatment, later),
            )
        )
        # Its own experts have gone backward by then.
        passed = later if treatment.full else [(treatment, 1), *later]
        used = [(freed(kept_feed_forward), 1), (_spent(job, kept_mixer), 1)]
        found.append(
            HalfBackward(
                name="attention backward",
                gone=gone + Bundle(used),
                relieved=relieved + Bundle([(_indices(kept_feed_forward), 1)]),
                replay=Bundle(before) + _replay_held(job, treatment, mixer=True),
                gradients=_mixer_gradients(job, layer) + _incoming(job, treatment, passed),
            )
        )
    return tuple(found)


def _group_again(
    job: MicroBatch, layer: Layer, mixer: Half, feed_forward: Half, group: int
) -> tuple[list[tuple[Half, int]], list[tuple[Half, int]]]:
    """What a replayed group has when its last feed-forward part goes backward, and its last mixer.

    What the group reads is kept, and not made again.
    """
    first = Half(tensor for tensor in mixer.tensors if tensor.tensor not in ENTERING)
    last = _unspent(job, mixer if group > 1 else first)
    used = _in_use(job, layer, feed_forward)
    if group == 1:
        return [(first, 1), (used, 1)], [(last, 1)]
    others = [(first, 1), (mixer, group - 2), (feed_forward, group - 1)]
    return [*others, (mixer, 1), (used, 1)], [*others, (last, 1)]


def _turns(
    job: MicroBatch, runs: list[tuple[Treatment, int]]
) -> Iterator[tuple[Treatment, list[tuple[Treatment, int]]]]:
    """Layers whose backward may be the widest, and what has gone backward before them."""
    last = {treatment: position for position, (treatment, _) in enumerate(runs)}
    for treatment, position in last.items():
        yield treatment, runs[position + 1 :]
    first = {treatment: position for position, (treatment, _) in reversed(list(enumerate(runs)))}
    for treatment, position in first.items():
        if outlives_backward(job, treatment):
            yield treatment, [(treatment, runs[position][1] - 1), *runs[position + 1 :]]


def _incoming(job: MicroBatch, treatment: Treatment, later: list[tuple[Treatment, int]]) -> Bundle:
    """Gradients that later layers left, beside what is counted with the layer's own."""
    held = held_gradients(job, later)
    if not treatment.full:
        return held
    # A group's backward holds the gradient that came in, which may be one of them.
    if job.implementation is Implementation.UNFUSED:
        return held if held.bytes else _gradients_of_inputs(job, 1)
    return _gradients_of_inputs(job, _held_count(job, later) - 1)


def held_gradients(job: MicroBatch, runs: list[tuple[Treatment, int]]) -> Bundle:
    """Gradients of the inputs of what was recomputed of these layers, which nothing lets go."""
    return _gradients_of_inputs(job, _held_count(job, runs))


def _held_count(job: MicroBatch, runs: list[tuple[Treatment, int]]) -> int:
    return sum(many for treatment, many in runs if outlives_backward(job, treatment))


def _gradients_of_inputs(job: MicroBatch, count: int) -> Bundle:
    if count < 1:
        return NOTHING
    component = Component.DECODER if job.recompute.granularity is Granularity.FULL else Component.EXPERTS
    name, size = "gradients of recomputed inputs, held with the routing", count * unfused.stream_bytes(job)
    found = [Kept(component, name, f"{count}*a*n*h", size)]
    if job.recompute.drops("moe") and job.recompute.drops("layernorm"):
        # Of other layers the input itself is among what they keep; this one a norm made again.
        found.append(Kept(component, "recomputed inputs, made again", f"{count}*a*n*h", size))
    return Bundle.of(*found)


def _replay_held(job: MicroBatch, treatment: Treatment, *, mixer: bool) -> Bundle:
    """What a replay has beside what the layer would have kept."""
    if job.implementation is not Implementation.UNFUSED:
        return NOTHING
    if treatment.full:
        return Bundle.of(*unfused_backward.group_held(job))
    if mixer:
        return Bundle.of(*unfused_backward.mixer_held(job))
    return Bundle.of(*unfused_backward.feed_forward_held(job, treatment.layer))


def _indices(half: Half) -> Half:
    """What of it a dispatcher keeps of its last routing."""
    found = [t for t in half.tensors if t.lasting and t.component is Component.EXPERTS]
    return Half(found) if found else EMPTY


def _used(job: MicroBatch, layer: Layer, feed_forward: Half) -> Half:
    """What of the feed-forward part's tensors is used up at its widest."""
    if job.implementation is not Implementation.UNFUSED:
        return EMPTY
    names = {tensor.tensor for tensor in feed_forward.tensors}
    return Half(t for t in unfused_backward.feed_forward_used(job, layer) if t.tensor in names)


def _in_use(job: MicroBatch, layer: Layer, feed_forward: Half) -> Half:
    """The rest of them."""
    used = {tensor.tensor: tensor.bytes for tensor in _used(job, layer, feed_forward).tensors}
    if not used:
        return feed_forward
    return Half(replace(t, bytes=t.bytes - used.get(t.tensor, 0)) for t in feed_forward.tensors)


def _spent(job: MicroBatch, mixer: Half) -> Half:
    """What the output projection, and unfused the softmax, have used up at the attention's widest."""
    if job.attention is not Backend.UNFUSED:
        return EMPTY  # a fused kernel reads its own output in backward
    return Half(tensor for tensor in mixer.tensors if tensor.spent)


def _unspent(job: MicroBatch, mixer: Half) -> Half:
    if job.attention is not Backend.UNFUSED:
        return mixer
    return Half(tensor for tensor in mixer.tensors if not tensor.spent)


def _feed_forward_gradients(job: MicroBatch, layer: Layer) -> Bundle:
    if job.implementation is Implementation.UNFUSED:
        return Bundle.of(*unfused_backward.feed_forward_gradients(job, layer))
    if layer.feed_forward is FeedForward.EXPERTS:
        count = experts.backward_bytes(job)
        return Bundle.of(Kept(Component.EXPERTS, "gradients of an expert layer", "2*a*n*h+a*R*(h+3f)", count))
    count = decoder.dense_backward_bytes(job, layer)
    return Bundle.of(Kept(Component.DECODER, "gradients of a dense part", "2*a*n*h+a*N*(1+2)*ffn/t", count))


def _mixer_gradients(job: MicroBatch, layer: Layer) -> Bundle:
    if job.implementation is Implementation.UNFUSED:
        return Bundle.of(*unfused_backward.mixer_gradients(job))
    count = decoder.mixer_backward_bytes(job, layer)
    return Bundle.of(Kept(Component.DECODER, "gradients of attention", "2*a*n*h+inner", count))
