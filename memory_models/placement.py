"""What stands where: the layers of each virtual chunk of a pipeline, as far as memory can tell them apart."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from memory_models.layout import Chunk, ParallelLayout
from memory_models.shapes import Layer, TextShape

#: Layers in order; equal ones that follow each other are one run.
Runs = tuple[tuple[Layer, int], ...]


class Place(NamedTuple):
    """What stands in a virtual chunk. Chunks in which the same stands are equal, and cost the same."""

    runs: Runs
    prediction: Runs  #: layers of multi-token prediction, after the others
    first: bool  #: with the embedding, and the vision tower of a VLM
    last: bool  #: with the output layer and the loss


def place(text: TextShape, chunk: Chunk) -> Place:
    """What stands in this chunk of the model."""
    extra = text.extra_prediction_layers if chunk.extra_prediction else 0
    prediction = ((text.layers[-1], extra),) if extra else ()
    return Place(text.runs(chunk.layers), prediction, chunk.first, chunk.last)


@lru_cache(maxsize=4096)
def places(text: TextShape, layout: ParallelLayout) -> tuple[tuple[Place, ...], ...]:
    """By pipeline rank, then by virtual stage."""
    ranks = layout.chunks(len(text.layers), text.extra_prediction_layers > 0)
    return tuple(tuple(place(text, chunk) for chunk in rank) for rank in ranks)
