"""The weights that a rank holds: exact element counts by component and shard.

Here live the counts only; what gradients and optimizer states they cost is states.py.
Sources are the module definitions of megatron-core and Megatron Bridge; certainty is exact
(checked against the parameters that the real code builds).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from memory_models.adapters import adapter_elements
from memory_models.breakdown import Component
from memory_models.choices import HasStates
from memory_models.glm_tower import glm_weights
from memory_models.job import Frozen
from memory_models.layer_weights import (
    attention_weights,
    expert_weights,
    gated_delta_weights,
    mamba_weights,
    norm_weights,
    share,
)
from memory_models.layout import Chunk
from memory_models.placement import Place, place, places
from memory_models.shapes import (
    FeedForward,
    Layer,
    Mixer,
    Norm,
    TextShape,
    Tower,
    VisionShape,
)


class Weights(NamedTuple):
    """Some parameters of one component on one rank.

    ``elements`` are those on the rank; the model has ``elements * shards`` of them, and where
    ``copy`` is set it counts them elsewhere already (tied embeddings on two stages).
    """

    component: Component
    name: str
    formula: str
    elements: int
    shards: int = 1
    expert: bool = False  #: sharded over expert-data-parallel ranks, not all of them
    trainable: bool = True
    copy: bool = False
    layer_unit: bool = True  #: part of a transformer layer, the unit that FSDP gathers
    layers: int = 1  #: how many these are the weights of


def stage_weights(job: HasStates, stage: int) -> tuple[Weights, ...]:
    """Every weight on a rank of this pipeline stage, its chunks together and those of equal layers summed."""
    return weights_of(job, places(job.text, job.layout)[stage])


def chunk_weights(job: HasStates, chunk: Chunk, stage: int) -> tuple[Weights, ...]:
    """The weights of one virtual chunk of a pipeline stage, tied copies included."""
    return _place_weights(
        job, place(job.text, chunk), beside_embedding=any(c.first for c in job.chunks[stage])
    )


def weights_of(job: HasStates, chunks: tuple[Place, ...]) -> tuple[Weights, ...]:
    """Every weight on a rank that holds these chunks."""
    groups: dict[tuple[str, int, bool], list[Weights]] = {}
    beside_embedding = any(place.first for place in chunks)
    for chunk in chunks:
        for weights in _place_weights(job, chunk, beside_embedding=beside_embedding):
            groups.setdefault((weights.name, weights.shards, weights.copy), []).append(weights)
    return tuple(_summed(group) for group in groups.values())


def _summed(group: list[Weights]) -> Weights:
    first, layers = group[0], sum([weights.layers for weights in group])
    if layers == 1:
        return first
    elements = sum([weights.elements for weights in group])
    return first._replace(elements=elements, formula=f"{layers}*({first.formula})", layers=layers)


def _place_weights(job: HasStates, chunk: Place, *, beside_embedding: bool) -> tuple[Weights, ...]:
    found = list(entering_weights(job, chunk))
    counts: Counter[Layer] = Counter()
    for layer, count in chunk.runs:
        counts[layer] += count
    for layer, count in counts.items():
        found += [
            weights._replace(elements=count * weights.elements, layers=count)
            for weights in layer_weights(job, layer)
        ]
    for layer, depth in chunk.prediction:
        found += _extra_prediction_weights(job, layer, depth)
    found += leaving_weights(job, chunk, beside_embedding=beside_embedding)
    return tuple(found)


def entering_weights(job: HasStates, chunk: Place) -> tuple[Weights, ...]:
    """What stands before the layers of a chunk, in the order of the modules: tower, projector, embedding."""
    if not chunk.first:
        return ()
    text, found = job.text, list[Weights]()
    if job.vision is not None:
        found += vision_weights(job.vision, job.frozen, job.layout.tensor)
    found.append(_embedding(text, job, "word embedding", copy=False))
    if text.learned_positions:
        found.append(
            Weights(
                component=Component.EMBEDDING_AND_LOSS,
                name="position embedding",
                formula="positions*h",
                elements=text.learned_positions * text.hidden_size,
                trainable=not job.frozen.language,
                layer_unit=False,
            )
        )
    return tuple(found)


def leaving_weights(job: HasStates, chunk: Place, *, beside_embedding: bool) -> tuple[Weights, ...]:
    """What stands after the layers of a chunk, tied copies of the embedding included."""
    text, found = job.text, list[Weights]()
    if chunk.last:
        found.append(
            Weights(
                component=Component.DECODER,
                name="final norm",
                formula="h" if text.norm is Norm.RMS else "2h",
                elements=norm_weights(text, text.hidden_size),
                trainable=not job.frozen.language,
                layer_unit=False,
            )
        )
    needs_embedding = (chunk.last and text.tied_embeddings) or bool(chunk.prediction)
    if needs_embedding and not beside_embedding:
        found.append(_embedding(text, job, "word embedding, copy of a later stage", copy=True))
    if chunk.last and not text.tied_embeddings:
        found.append(_embedding(text, job, "output layer", copy=False))
    return tuple(found)


def _embedding(text: TextShape, job: HasStates, name: str, *, copy: bool) -> Weights:
    return Weights(
        component=Component.EMBEDDING_AND_LOSS,
        name=name,
        formula="V*h/t",
        elements=share(text.vocabulary, job.layout.tensor, "the padded vocabulary") * text.hidden_size,
        shards=job.layout.tensor,
        trainable=not job.frozen.language,
        copy=copy,
        layer_unit=False,
    )


def layer_weights(job: HasStates, layer: Layer) -> tuple[Weights, ...]:
    """The weights of one decoder layer on one rank."""
    text, layout = job.text, job.layout
    tensor, expert, expert_tensor, hidden = (
        layout.tensor,
        layout.expert,
        layout.expert_tensor,
        text.hidden_size,
    )
    found: list[Weights] = []

    def add(
        component: Component,
        name: str,
        formula: str,
        elements: int,
        shards: int = 1,
        *,
        experts: bool = False,
    ) -> None:
        found.append(
            Weights(
                component=component,
                name=name,
                formula=formula,
                elements=elements,
                shards=shards,
                expert=experts,
                trainable=not job.frozen.language,
            )
        )

    norms = (layer.mixer is not Mixer.NONE) + (layer.feed_forward is not FeedForward.NONE)
    add(Component.DECODER, "layer norms", "h or 2h each", norms * norm_weights(text, hidden))
    if layer.mixer is Mixer.ATTENTION:
        attention_weights(text, tensor, add)
    elif layer.mixer is Mixer.MAMBA:
        mamba_weights(text, tensor, add)
    elif layer.mixer is Mixer.GATED_DELTA:
        gated_delta_weights(text, tensor, add)
    if layer.feed_forward is FeedForward.DENSE:
        width = share(text.feed_forward_size, tensor, "the feed-forward size")
        matrices = 2 + text.activation.gated
        add(Component.DECODER, "feed-forward", f"{matrices}*h*ffn/t", matrices * hidden * width, tensor)
        if text.linear_bias:
            add(Component.DECODER, "feed-forward bias in", "ffn/t", (matrices - 1) * width, tensor)
            add(Component.DECODER, "feed-forward bias out", "h", hidden)
    elif layer.feed_forward is FeedForward.EXPERTS:
        expert_weights(text, tensor, expert, expert_tensor, add)
    for component, name, elements, routed in adapter_elements(job, layer):
        shards = expert * expert_tensor if routed else tensor
        found.append(
            Weights(
                component=component,
                name=name,
                formula="r*(in+out)/t",
                elements=-(-elements // shards),
                shards=shards,
                expert=routed,
            )
        )
    return tuple(found)


def _extra_prediction_weights(job: HasStates, layer: Layer, depth: int) -> list[Weights]:
    """Multi-token prediction: per depth a layer of the last kind, three norms and a projection of 2h to h."""
    text, hidden = job.text, job.text.hidden_size
    found: list[Weights] = []
    for _ in range(depth):
        found += layer_weights(job, layer)
        found.append(
            Weights(
                component=Component.DECODER,
                name="prediction norms",
                formula="3h",
                elements=3 * norm_weights(text, hidden),
                trainable=not job.frozen.language,
            )
        )
        found.append(
            Weights(
                component=Component.DECODER,
                name="prediction projection",
                formula="2h*h/t",
                elements=share(2 * hidden * hidden, job.layout.tensor, "the prediction projection"),
                shards=job.layout.tensor,
                trainable=not job.frozen.language,
            )
        )
    return found


@lru_cache(maxsize=1024)
def vision_weights(vision: VisionShape, frozen: Frozen, tensor: int) -> tuple[Weights, ...]:
    """The tower and the projector; the Hugging Face tower is whole on every tensor-parallel rank."""
    shards = tensor if vision.native else 1
    hidden, width, merged = vision.hidden_size, vision.feed_forward_size, vision.merged_size
    found: list[Weights] = []

    def add(component: Component, name: str, formula: str, elements: int, split: int = 1) -> None:
        trainable = not (frozen.vision if component is Component.VISION else frozen.projector)
        found.append(
            Weights(
                component=component,
                name=name,
                formula=formula,
                elements=elements,
                shards=split,
                trainable=trainable,
            )
        )

    if vision.family is Tower.GLM:
        for part in glm_weights(vision):
            add(*part)
        return tuple(found)
    add(Component.VISION, "patch embedding", "in*T*P^2*vh+vh", vision.patch_elements * hidden + hidden)
    add(Component.VISION, "position embedding", "positions*vh", vision.positions * hidden)
    split_block = 4 * hidden * hidden + 3 * hidden + 2 * hidden * width + width
    whole_block = 2 * hidden + 4 * hidden  # output biases of attention and MLP; two layer norms
    add(
        Component.VISION,
        "vision blocks, split",
        "L*(4*vh^2+3*vh+2*vh*vf+vf)/t",
        vision.depth * share(split_block, shards, "a vision block"),
        shards,
    )
    add(Component.VISION, "vision blocks, whole", "L*6*vh", vision.depth * whole_block)
    split_merger = merged * merged + merged + merged * vision.output_size
    mergers = 1 + vision.deepstack
    add(
        Component.PROJECTOR,
        "mergers, split",
        "(1+nds)*((4vh)^2+4vh+4vh*h)/t",
        mergers * share(split_merger, shards, "a merger"),
        shards,
    )
    add(
        Component.PROJECTOR,
        "merger norms and biases",
        "2*vh+nds*2*4vh+(1+nds)*h",
        2 * hidden + vision.deepstack * 2 * merged + mergers * vision.output_size,
    )
    return tuple(found)


def model_parameters(job: HasStates) -> dict[Component, int]:
    """Parameters of the whole model by component, each counted once."""
    sums = dict.fromkeys(Component, 0)
    for stage in range(job.layout.pipeline):
        for component, elements in whole(stage_weights(job, stage)).items():
            sums[component] += elements
    return sums


def whole(weights: Iterable[Weights]) -> dict[Component, int]:
    """Elements of the model that these shards stand for, copies left out."""
    sums = dict.fromkeys(Component, 0)
    for part in weights:
        if not part.copy:
            sums[part.component] += part.elements * part.shards
    return sums
