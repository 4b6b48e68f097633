"""What recompute, offload and frozen parts make of each layer: what of its two halves waits for backward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from memory_models import decoder, experts, unfused
from memory_models.adapters import inputs_kept
from memory_models.breakdown import Component
from memory_models.choices import MicroBatch
from memory_models.job import Granularity, Implementation
from memory_models.placement import Runs
from memory_models.shapes import FeedForward, Layer
from memory_models.tensors import Half, Kept


class Treatment(NamedTuple):
    """What recompute and offload make of the layer at some position; layers alike are treated alike."""

    layer: Layer
    full: bool  #: recomputed from its input, or its group's
    first: bool  #: of its group, whose input is kept
    offloaded: bool  #: the inputs of some modules wait in the host's memory
    away: bool  #: all of it waits there


Halves = tuple[Half, Half]
EMPTY = Half(())
#: What a layer, or a group of recomputed ones, reads.
ENTERING = frozenset({"mixer residual", "checkpoint input"})


def treated_runs(job: MicroBatch, layers: Runs, *, final: bool) -> list[tuple[Treatment, int]]:
    """The layers in order, those that follow each other and are treated alike as one run."""
    count = sum(many for _, many in layers)
    full = job.recompute.granularity is Granularity.FULL
    recomputed = (count if job.recompute.method == "uniform" else job.recompute.layers) if full else 0
    group = group_size(job, count)
    # Positions at which the treatment can change.
    cuts = {0, count, recomputed, job.offloaded_layers}
    if job.offload and final:
        cuts.add(count - 1)
    if full and group > 1:
        cuts.update(range(0, count, group), range(1, count, group))
    starts: dict[int, Layer] = {}
    so_far = 0
    for layer, many in layers:
        starts[so_far] = layer
        so_far += many
    cuts.update(starts)
    runs: list[tuple[Treatment, int]] = []
    for position, end in pairwise(sorted(cut for cut in cuts if 0 <= cut <= count)):
        layer = starts.get(position, layer)
        again = position < recomputed
        treatment = Treatment(
            layer=layer,
            full=again,
            first=again and position % group == 0,
            offloaded=bool(job.offload) and not (final and position == count - 1),
            away=position < job.offloaded_layers,
        )
        runs.append((treatment, end - position))
    return runs


def counted(runs: list[tuple[Treatment, int]], stays: Mapping[Treatment, Halves]) -> list[tuple[Half, int]]:
    """What stays of these layers, with how many of them are alike."""
    return [(half, count) for treatment, count in runs for half in stays[treatment]]


def freed(half: Half) -> Half:
    """What of it has gone when its backward is over."""
    if not any(tensor.lasting for tensor in half.tensors):
        return half
    return Half(tensor for tensor in half.tensors if not tensor.lasting)


def outliving(half: Half) -> Half:
    """The rest of it."""
    lasting = [tensor for tensor in half.tensors if tensor.lasting]
    return Half(lasting) if lasting else EMPTY


@lru_cache(maxsize=2048)
def layer_halves(job: MicroBatch, layer: Layer) -> Halves:
    """What mixer and feed-forward part keep with no recompute, less what only frozen weights need."""
    if job.implementation is Implementation.UNFUSED:
        mixer, feed_forward = unfused.mixer_tensors(job, layer), unfused.feed_forward_tensors(job, layer)
    else:
        mixer, feed_forward = decoder.mixer_tensors(job, layer), ()
        if layer.feed_forward is FeedForward.DENSE:
            feed_forward = decoder.dense_tensors(job)
        elif layer.feed_forward is FeedForward.EXPERTS:
            feed_forward = decoder.expert_norm_tensors(job) + experts.expert_tensors(job)
    return Half(_needed(job, layer, mixer)), Half(_needed(job, layer, feed_forward))


def _needed(job: MicroBatch, layer: Layer, tensors: Iterable[Kept]) -> tuple[Kept, ...]:
    """Without what only frozen weights need, but with what their adapters do."""
    if job.adapters is None:
        return trained(tensors, job.frozen.language)
    kept: list[Kept] = []
    for tensor in tensors:
        kept += inputs_kept(job, layer, tensor) if tensor.for_weight else (tensor,)
    return tuple(kept)


def trained(tensors: Iterable[Kept], frozen: bool) -> tuple[Kept, ...]:
    return tuple(tensor for tensor in tensors if not (frozen and tensor.for_weight))


def group_size(job: MicroBatch, layers: int) -> int:
    """Layers that full recompute replays at once."""
    return max(1, min(job.recompute.layers, layers)) if job.recompute.method == "uniform" else 1


def stays_of(job: MicroBatch, treatment: Treatment, halves: Halves) -> Halves:
    """What of a layer's halves waits on the GPU for backward."""
    if treatment.away:
        return EMPTY, EMPTY
    mixer, feed_forward = halves
    if treatment.full:
        entering = Half([_checkpoint_input(job, treatment)] if treatment.first else ())
        sparse = treatment.layer.feed_forward is FeedForward.EXPERTS
        on_gpu = job.implementation is not Implementation.UNFUSED
        return entering, Half(experts.retained_rows(job) if sparse and on_gpu else ())
    away = job.offload if treatment.offloaded else frozenset()
    modules = _dropping(job)
    if not (modules or away):
        return halves
    sparse = treatment.layer.feed_forward is FeedForward.EXPERTS
    return split(mixer, modules, away, sparse=sparse)[0], split(feed_forward, modules, away, sparse=sparse)[0]


def _dropping(job: MicroBatch) -> frozenset[str]:
    """Modules that selective recompute drops."""
    selective = job.recompute.granularity is Granularity.SELECTIVE
    return job.recompute.modules if selective else frozenset()


@lru_cache(maxsize=4096)
def split(half: Half, modules: frozenset[str], away: frozenset[str], *, sparse: bool) -> tuple[Half, Half]:
    """What stays of half a layer, and what these modules make again; ``away`` waits in the host's memory.

    ``moe`` drops all of the experts that does not outlive backward, ``mlp`` parts of dense layers only.
    """
    everything = sparse and "moe" in modules
    stays: list[Kept] = []
    again: list[Kept] = []
    for tensor in half.tensors:
        experts_own = everything and tensor.component is Component.EXPERTS
        dropped = not tensor.lasting if experts_own else tensor.module in modules
        if dropped:
            again.append(tensor)
        elif tensor.offload not in away:
            stays.append(tensor)
    return Half(stays), Half(again)


def replayed(job: MicroBatch, layer: Layer, half: Half) -> Half:
    """What selective recompute makes again of it."""
    modules = _dropping(job)
    if not modules:
        return EMPTY
    return split(half, modules, frozenset(), sparse=layer.feed_forward is FeedForward.EXPERTS)[1]


def _checkpoint_input(job: MicroBatch, treatment: Treatment) -> Kept:
    stream = job.residual_tokens * job.text.hidden_size * job.text.residual_streams
    count = job.precision.activation_bytes * stream
    return Kept(
        Component.DECODER, "checkpoint input", "a*n*h", count, lasting=outlives_backward(job, treatment)
    )


def outlives_backward(job: MicroBatch, treatment: Treatment) -> bool:
    """Whether the input of what is recomputed, and its gradient, outlive backward.

    Every dispatcher keeps its last routing until the next forward pass, and so the graph back to where
    recompute cut it off: at the input of the layer's experts, of the layer or of its group. Measured on a
    CPU with megatron-core 0.16.1, read in the production dispatchers up to August 2026 (certainty B).
    """
    if treatment.layer.feed_forward is not FeedForward.EXPERTS:
        return False
    if treatment.full:
        return treatment.first
    # Without full recompute it cannot be a peak: layers that went backward before left more than that.
    return job.implementation is Implementation.UNFUSED and job.recompute.drops("moe")
