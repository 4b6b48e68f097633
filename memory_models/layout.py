"""How a job is spread over GPUs, and which layers stand on which pipeline stage.

Here live the sizes of the parallel groups and the placement of layers. What a layer
weighs belongs to parameters and activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

#: Layers and bars of the longest pipeline layout.
LONGEST_LAYOUT = 20_000
#: Stages of the longest pipeline; a larger number is a slip.
MOST_STAGES = 128
MOST_CHUNKS = 256


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The part of the model that one pipeline rank holds as its n-th virtual stage."""

    layers: tuple[int, ...]  #: indices into the model's layers, without multi-token prediction
    first: bool  #: holds the embedding, and the vision tower of a VLM
    last: bool  #: holds the output layer and the loss
    extra_prediction: bool = False  #: holds the multi-token prediction layers


@dataclass(frozen=True, kw_only=True)
class ParallelLayout:
    """Sizes of the parallel groups, as Megatron names them.

    Raises ValueError where the world does not divide: the message shows the product.
    """

    world_size: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual_pipeline: int = 1
    sequence_parallel: bool = False
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    embedding_as_layer: bool = False  #: account_for_embedding_in_pipeline_split
    loss_as_layer: bool = False  #: account_for_loss_in_pipeline_split
    custom: str | None = None  #: pipeline_model_parallel_layout, e.g. "Et*3|(tt|)*29,m|L"
    microbatch_group: int | None = None  #: microbatch_group_size_per_vp_stage

    def __post_init__(self) -> None:
        sizes = (
            self.world_size,
            self.tensor,
            self.pipeline,
            self.context,
            self.expert,
            self.expert_tensor,
            self.virtual_pipeline,
        )
        if min(sizes) < 1:
            raise ValueError(f"every parallel size must be 1 or more: {self}")
        if max(self.pipeline, self.virtual_pipeline, self.microbatch_group or 1) > MOST_STAGES:
            raise ValueError(
                f"no pipeline has more than {MOST_STAGES} stages, chunks or micro-batches a group"
            )
        if self.pipeline * self.virtual_pipeline > MOST_CHUNKS:
            raise ValueError(
                f"pp {self.pipeline} x vpp {self.virtual_pipeline} are more than {MOST_CHUNKS} virtual stages"
            )
        dense = self.tensor * self.context * self.pipeline
        if self.world_size % dense:
            raise ValueError(
                f"{self.world_size} GPUs do not divide by "
                f"tp {self.tensor} x cp {self.context} x pp {self.pipeline} = {dense}"
            )
        sparse = self.expert_tensor * self.expert * self.pipeline
        if self.world_size % sparse:
            raise ValueError(
                f"{self.world_size} GPUs do not divide by "
                f"etp {self.expert_tensor} x ep {self.expert} x pp {self.pipeline} = {sparse}"
            )

    @property
    def data(self) -> int:
        """Data-parallel replicas of the dense part."""
        return self.world_size // (self.tensor * self.context * self.pipeline)

    @property
    def expert_data(self) -> int:
        """Replicas of each expert shard: W / (etp * ep * pp)."""
        return self.world_size // (self.expert_tensor * self.expert * self.pipeline)

    @property
    def dense_shard(self) -> int:
        """Ranks that share the optimizer states of a dense parameter: context parallelism counts."""
        return self.data * self.context

    @property
    def sequence_shard(self) -> int:
        """By how much the residual stream is split over tensor-parallel ranks."""
        return self.tensor if self.sequence_parallel else 1

    def chunks(self, layers: int, extra_prediction: bool = False) -> tuple[tuple[Chunk, ...], ...]:
        """Chunks by pipeline rank, then by virtual stage, for a model of ``layers`` layers."""
        return _place(self, layers, extra_prediction)


@lru_cache(maxsize=4096)
def _place(layout: ParallelLayout, layers: int, extra_prediction: bool) -> tuple[tuple[Chunk, ...], ...]:
    stages = layout.pipeline * layout.virtual_pipeline
    if layout.custom:
        counts, extra_stage = _custom_counts(layout.custom)
        if len(counts) % layout.pipeline:
            raise ValueError(
                f"the pipeline layout {layout.custom!r} has {len(counts)} stages, "
                f"which {layout.pipeline} ranks cannot share"
            )
        stages = len(counts)
        if sum(counts) != layers:
            raise ValueError(
                f"the pipeline layout {layout.custom!r} places {sum(counts)} layers, "
                f"but the model has {layers}"
            )
    else:
        counts, extra_stage = _even_counts(layout, layers, stages), stages - 1
    starts = [sum(counts[:index]) for index in range(stages)]
    chunk = [
        Chunk(
            layers=tuple(range(starts[index], starts[index] + counts[index])),
            first=index == 0,
            last=index == stages - 1,
            extra_prediction=extra_prediction and index == extra_stage,
        )
        for index in range(stages)
    ]
    return tuple(tuple(chunk[rank :: layout.pipeline]) for rank in range(layout.pipeline))


def _even_counts(layout: ParallelLayout, layers: int, stages: int) -> list[int]:
    """Layers per global stage; stage 0 and the last may differ, and hold the embedding or loss as a layer."""
    first, last = layout.first_stage_layers, layout.last_stage_layers
    chunks = layout.virtual_pipeline
    if first is not None or last is not None:
        fixed = (first or 0) + (last or 0)
        ranks = layout.pipeline - (first is not None) - (last is not None)
        if ranks and (layers - fixed) % ranks:
            raise ValueError(f"{layers - fixed} layers do not divide over the {ranks} inner pipeline ranks")
        inner = (layers - fixed) // ranks if ranks else 0
        by_rank = [inner] * layout.pipeline
        if first is not None:
            by_rank[0] = first
        if last is not None:
            by_rank[-1] = last
        if any(count % chunks for count in by_rank):
            raise ValueError(f"layers per pipeline rank {by_rank} do not divide by {chunks} virtual stages")
        return [by_rank[stage % layout.pipeline] // chunks for stage in range(stages)]
    total = layers + layout.embedding_as_layer + layout.loss_as_layer
    if total % stages:
        raise ValueError(
            f"{layers} layers (with {total - layers} for embedding and loss) do not divide by "
            f"pp {layout.pipeline} x vpp {chunks}"
        )
    counts = [total // stages] * stages
    counts[0] -= layout.embedding_as_layer
    counts[-1] -= layout.loss_as_layer
    return counts


def _custom_counts(text: str) -> tuple[list[int], int]:
    """Decoder layers of each stage of Megatron's layout language, and the stage of the MTP layers.

    ``|`` parts stages, ``t`` is a decoder layer, ``E`` the embedding, ``m`` a multi-token
    prediction layer, ``L`` the loss; ``x*n`` and ``(...)*n`` repeat, commas are ignored.
    """
    expanded = _expand(text.replace(",", "").replace(" ", ""))
    stages = expanded.split("|")
    extra = [index for index, stage in enumerate(stages) if "m" in stage]
    return [stage.count("t") for stage in stages], (extra[-1] if extra else len(stages) - 1)


def _expand(text: str) -> str:
    result, position = "", 0
    while position < len(text):
        if text[position] == "(":
            depth, end = 1, position + 1
            while depth:
                if end >= len(text):
                    raise ValueError(f"the pipeline layout {text!r} opens a bracket that it does not close")
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            unit = _expand(text[position + 1 : end - 1])
        else:
            unit, end = text[position], position + 1
        repeat = 1
        if end < len(text) and text[end] == "*":
            digits = end + 1
            while digits < len(text) and text[digits].isdigit():
                digits += 1
            repeat, end = int(text[end + 1 : digits]), digits
        if len(result) + len(unit) * repeat > LONGEST_LAYOUT:
            raise ValueError(f"the pipeline layout {text[:60]!r} is longer than any: a slip in a repeat?")
        result += unit * repeat
        position = end
    return result
