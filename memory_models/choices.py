"""Which of a job's choices which part of an estimate follows from, as values that results are kept under.

An estimate joins two tables that are alike for many jobs: what a rank holds all the time (`Holding`) and what
a micro-batch adds (`MicroBatch`). A search that changes one choice makes one of them anew. The formulas of
a table get its value and nothing else, so no result can depend on a choice that its key lacks:
a formula is typed for a job or the value, so it can ask only for what both have.
"""

from __future__ import annotations

from typing import NamedTuple

from memory_models.job import (
    Adapters,
    Backend,
    Card,
    CrossEntropy,
    Dispatcher,
    Frozen,
    Granularity,
    Graphs,
    Implementation,
    OptimizerSetup,
    Precision,
    Recompute,
    Routing,
    Sharding,
    TrainingJob,
)
from memory_models.layout import Chunk, ParallelLayout
from memory_models.shapes import ImageLoad, TextShape, VisionShape
from memory_models.upstream import Upstream


class Split(NamedTuple):
    """Over how many ranks the tensors of a micro-batch are spread."""

    tensor: int
    context: int
    expert_tensor: int
    expert: int  #: 1 where no tensor of a micro-batch depends on it
    pipeline: int  #: the same
    sequence_parallel: bool
    sequence_shard: int


class Samples(NamedTuple):
    """The samples of a micro-batch."""

    micro: int
    sequence_length: int
    images: ImageLoad
    packed: bool


class MicroBatch(NamedTuple):
    """What the tensors of one micro-batch on one rank follow from; see TrainingJob for each field.

    Neither the number of GPUs nor what the optimizer keeps is among it.
    """

    text: TextShape
    vision: VisionShape | None
    layout: Split
    batch: Samples
    recompute: Recompute
    precision: Precision
    gathers_gradients: bool  #: FSDP piles gradients up until a micro-batch's backward has ended
    frozen: Frozen
    routing: Routing
    cross_entropy: CrossEntropy
    attention: Backend
    implementation: Implementation
    hidden_dropout: float
    attention_dropout: float
    bias_activation_fusion: bool
    softmax_in_float: bool
    offload: frozenset[str]
    offloaded_layers: int
    adapters: Adapters | None
    graphs: Graphs
    deferred_embedding_gradient: bool
    card: Card
    deterministic: bool
    upstream: Upstream
    tokens: int
    residual_tokens: int
    patches: int


class Holding(NamedTuple):
    """What parameters, gradients and optimizer states on a rank follow from; see TrainingJob for each field.

    Neither the batch nor what is recomputed is among it.
    """

    text: TextShape
    vision: VisionShape | None
    layout: ParallelLayout
    optimizer: OptimizerSetup
    precision: Precision
    sharding: Sharding
    double_buffer: bool
    frozen: Frozen
    adapters: Adapters | None
    implementation: Implementation
    gradient_accumulation_fusion: bool
    card: Card
    upstream: Upstream

    @property
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """Chunks by pipeline rank, then by virtual stage."""
        return self.layout.chunks(len(self.text.layers), self.text.extra_prediction_layers > 0)


#: What a formula of activations is given.
HasMicroBatch = TrainingJob | MicroBatch
#: What a formula of parameters and states is given.
HasStates = TrainingJob | Holding


def micro_batch(job: TrainingJob) -> MicroBatch:
    """The choices that a micro-batch's tensors follow from."""
    layout, batch, sharding = job.layout, job.batch, job.sharding
    # Each expert rank brings its own tokens; only these two see how many of them there are.
    met = job.routing.dispatcher is Dispatcher.ALLGATHER or job.implementation is Implementation.UNFUSED
    return MicroBatch(
        text=job.text,
        vision=job.vision,
        layout=Split(
            layout.tensor,
            layout.context,
            layout.expert_tensor,
            layout.expert if met else 1,
            layout.pipeline if job.deferred_embedding_gradient else 1,
            layout.sequence_parallel,
            layout.sequence_shard,
        ),
        batch=Samples(batch.micro, batch.sequence_length, batch.images, batch.packed),
        recompute=job.recompute,
        precision=job.precision,
        gathers_gradients=sharding is Sharding.EVERYTHING or sharding is Sharding.STATES_GRADIENTS,
        frozen=job.frozen,
        routing=job.routing,
        cross_entropy=job.cross_entropy,
        attention=job.attention,
        implementation=job.implementation,
        hidden_dropout=job.hidden_dropout,
        attention_dropout=job.attention_dropout,
        bias_activation_fusion=job.bias_activation_fusion,
        softmax_in_float=job.softmax_in_float,
        offload=job.offload,
        offloaded_layers=job.offloaded_layers,
        adapters=job.adapters,
        graphs=job.graphs,
        deferred_embedding_gradient=job.deferred_embedding_gradient,
        card=job.card,
        deterministic=job.deterministic,
        upstream=job.upstream,
        tokens=job.tokens,
        residual_tokens=job.residual_tokens,
        patches=job.patches,
    )


def of_layers(job: MicroBatch) -> MicroBatch:
    """The choices that a layer's tensors follow from, before anything is recomputed or offloaded."""
    # Only unfused attention keeps another tensor where its core is recomputed.
    recompute = job.recompute if job.implementation is Implementation.UNFUSED else Recompute()
    return job._replace(
        recompute=recompute, offload=frozenset(), offloaded_layers=0, graphs=Graphs(), vision=None, patches=0
    )


def of_first_chunk(job: MicroBatch) -> MicroBatch:
    """The choices that the tensors before the first layer follow from: of recompute, whether it is full."""
    if job.implementation is Implementation.UNFUSED:
        return job
    full = job.recompute.granularity is Granularity.FULL
    recompute = Recompute(granularity=Granularity.FULL) if full else Recompute()
    return job._replace(recompute=recompute, offload=frozenset(), offloaded_layers=0, graphs=Graphs())


def holding(job: TrainingJob) -> Holding:
    """The choices that states follow from."""
    return Holding(
        text=job.text,
        vision=job.vision,
        layout=job.layout,
        optimizer=job.optimizer,
        precision=job.precision,
        sharding=job.sharding,
        double_buffer=job.double_buffer,
        frozen=job.frozen,
        adapters=job.adapters,
        implementation=job.implementation,
        gradient_accumulation_fusion=job.gradient_accumulation_fusion,
        card=job.card,
        upstream=job.upstream,
    )
