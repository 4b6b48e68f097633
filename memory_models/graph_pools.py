"""Private pools of CUDA graphs: what a captured scope keeps stays allocated when nobody needs it.

Section 7 of the formulas page. The activations of captured scopes live in the graphs' pool for good, for
as many micro-batches as are in flight; at instants that need fewer, the rest is idle, and no
other tensor can use it. A graph of the whole iteration keeps every activation so, and the steps that
warm it up leave as much again cached in the allocator. Certainty B; the latter C (measured: 1.5 to 2 times).
Gradients that pass within a captured scope are not added: with them, measured peaks fit no better.
"""

from __future__ import annotations

from collections.abc import Iterable

from memory_models.breakdown import Category, Component
from memory_models.choices import HasMicroBatch
from memory_models.decoder import dense_tensors, expert_norm_tensors, mixer_tensors
from memory_models.experts import expert_tensors
from memory_models.job import Capture, Implementation
from memory_models.shapes import FeedForward, Layer, Mixer
from memory_models.tensors import Kept, Part

Name = tuple[Component, str]
_ROUTER = frozenset({"router logits, scores and probabilities", "routing map"})
_PREPROCESS = frozenset({"row id map", "row indices"})


def captured_names(job: HasMicroBatch) -> frozenset[Name] | None:
    """Kept tensors that live in the pool; None where nothing is captured."""
    graphs = job.graphs
    if graphs.capture is Capture.NONE or job.implementation is Implementation.UNFUSED:
        return None
    names: set[Name] = set()
    for layer in job.text.kinds:
        names |= {(tensor.component, tensor.tensor) for tensor in _captured(job, layer)}
    return frozenset(names)


def _captured(job: HasMicroBatch, layer: Layer) -> Iterable[Kept]:
    whole = job.graphs.capture is Capture.FULL_ITERATION or not job.graphs.scopes
    scopes = job.graphs.scopes
    mixer = "mamba" if layer.mixer is Mixer.MAMBA else "attn"
    if whole or mixer in scopes:
        yield from mixer_tensors(job, layer)
    if layer.feed_forward is FeedForward.DENSE and (whole or "mlp" in scopes):
        yield from dense_tensors(job)
    if layer.feed_forward is FeedForward.EXPERTS:
        if whole or scopes & {"moe", "moe_router"}:
            yield from expert_norm_tensors(job)
        for tensor in expert_tensors(job):
            router = "moe_router" in scopes and tensor.tensor in _ROUTER
            preprocess = "moe_preprocess" in scopes and tensor.tensor in _PREPROCESS
            if whole or "moe" in scopes or router or preprocess:
                yield tensor


def pooled_bytes(parts: Iterable[Part], names: frozenset[Name]) -> int:
    """Of these parts, those that live in the pool."""
    return sum(
        part.bytes
        for part in parts
        if part.category is Category.ACTIVATIONS and (part.component, part.tensor) in names
    )


def pool_parts(idle_bytes: int) -> tuple[Part, ...]:
    """The idle rest of the pool."""
    if not idle_bytes:
        return ()
    return (
        Part(
            component=Component.RUNTIME,
            category=Category.TEMPORARY,
            tensor="idle part of the CUDA graphs' pool",
            formula="captured in flight - needed",
            bytes=idle_bytes,
        ),
    )


def warm_up_bytes(parts: Iterable[Part]) -> int:
    """Segments that the eager steps before a graph of the whole iteration leave in the cache."""
    passing = (Category.ACTIVATIONS, Category.TEMPORARY)
    return sum(p.bytes for p in parts if p.category in passing and p.component is not Component.RUNTIME)
