"""A training job as far as its memory goes: one frozen value that every estimate starts from.

Here live the choices of a run (batch, recompute, optimizer, precision, frozen parts) and the
job that joins them with shapes and layout. Reading a configuration belongs to reading.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from memory_models.distributions import Unknowns
from memory_models.layout import Chunk, ParallelLayout
from memory_models.shapes import ImageLoad, TextShape, VisionShape
from memory_models.upstream import NEWEST, Upstream


class Implementation(StrEnum):
    """Which kernels run, and so which tensors they keep for backward."""

    PRODUCTION = (
        "production"  #: Transformer Engine: fused norms and activations, grouped GEMM, flash attention
    )
    LOCAL = "local"  #: megatron-core's own modules on a GPU: fused softmax, scores of s x s
    UNFUSED = "unfused"  #: what a CPU runs: local modules, no fusion at all, SequentialMLP experts


class Granularity(StrEnum):
    """What is computed again in backward instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Sharding(StrEnum):
    """What Megatron FSDP shards over data-parallel ranks."""

    NONE = "no_shard"
    STATES = "optim"
    STATES_GRADIENTS = "optim_grads"
    EVERYTHING = "optim_grads_params"


class Dispatcher(StrEnum):
    """How tokens are exchanged between expert ranks."""

    ALLGATHER = "allgather"
    ALLTOALL = "alltoall"
    FLEX = "flex"


class CrossEntropy(StrEnum):
    """Which kernel computes the loss, for the copies of the logits that it makes."""

    UNFUSED = "unfused"
    NATIVE = "native"  #: megatron-core's fused kernel: still a float copy of the logits
    TRANSFORMER_ENGINE = "te"
    LINEAR = "linear"  #: output layer and loss in one kernel, no logits


class Backend(StrEnum):
    """The attention kernel, for what it keeps."""

    FUSED = "fused"  #: cuDNN: no scores, output in the layout that the projection reads
    FLASH = "flash"  #: FlashAttention: no scores, but a second copy of the output where batch > 1
    UNFUSED = "unfused"  #: a tensor of s x s scores


class Card(StrEnum):
    """The generation of GPU, for the workspaces that libraries take on it."""

    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class Capture(StrEnum):
    """How CUDA graphs are captured."""

    NONE = "none"
    LOCAL = "local"  #: megatron-core's own graphs, a layer each
    TRANSFORMER_ENGINE = "transformer_engine"  #: parts of layers
    FULL_ITERATION = "full_iteration"  #: forward and backward of a step as one graph


GRAPH_SCOPES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
ADAPTER_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
OFFLOAD_MODULES = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
RECOMPUTE_MODULES = (
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
    "gdn_norm_out",
)


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """What is recomputed. ValueError for a module or method that megatron-core does not have."""

    granularity: Granularity = Granularity.NONE
    method: str = (
        "uniform"  #: of full: "uniform" groups of ``layers``, or "block": the first ``layers`` of a stage
    )
    layers: int = 1
    modules: frozenset[str] = frozenset()  #: of selective

    def __post_init__(self) -> None:
        unknown = sorted(self.modules - set(RECOMPUTE_MODULES))
        if unknown:
            raise ValueError(
                f"recompute_modules names {unknown}; megatron-core knows {list(RECOMPUTE_MODULES)}"
            )
        if self.method not in ("uniform", "block"):
            raise ValueError(
                f"recompute_method is {self.method!r}; megatron-core knows 'uniform' and 'block'"
            )

    def drops(self, module: str) -> bool:
        """Whether the tensors of this module are not kept."""
        return self.granularity is Granularity.SELECTIVE and module in self.modules


@dataclass(frozen=True, kw_only=True)
class OptimizerSetup:
    """What the optimizer keeps for a trainable parameter, in bytes of a whole (unsharded) one."""

    distributed: bool = True
    #: overlap_grad_reduce: the first stage's gradients are reduced, and its states sharded, by buckets
    bucketed: bool = False
    instances: int = 1  #: num_distributed_optimizer_instances
    master_bytes: int = 4  #: 0 where the weights themselves are fp32
    first_moment_bytes: int = 4
    second_moment_bytes: int = 4
    offload_fraction: float = 0.0  #: share of the moments that the CPU keeps


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Bytes of one element of weights, gradients and activations."""

    parameter_bytes: int = 2
    gradient_bytes: int = 4
    activation_bytes: int = 2
    fp8: bool = False  #: inputs of matrix products are kept in one byte
    fp8_parameters: bool = False
    fp8_recipe: str = "delayed"
    fp16: bool = False


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """Parts that do not learn: no gradients, no states, and no activations that only weights need."""

    language: bool = False
    vision: bool = False
    projector: bool = False


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How tokens reach the experts, and how unevenly."""

    dispatcher: Dispatcher = Dispatcher.ALLTOALL
    #: routed rows on this rank over the balanced number, over the layers that are alive
    imbalance: float = 1.0
    capacity_factor: float | None = None
    pad_to_capacity: bool = False
    #: moe_expert_rank_capacity_factor: buffers for this multiple of the balanced rows, whatever comes
    rank_capacity: float | None = None
    #: moe_paged_stash: pages for this multiple of the balanced rows hold what experts keep
    stash: float | None = None
    force_balance: bool = False
    fused_permutation: bool = True
    grouped_gemm: bool = True
    shared_overlap: bool = False
    exchange_overlap: bool = False  #: overlap_moe_expert_parallel_comm
    backend: str = "deepep"  #: of the flex dispatcher: deepep, hybridep or ncclep


@dataclass(frozen=True, kw_only=True)
class Graphs:
    """What is captured. No scope at all means whole layers. ValueError for a scope that does not exist."""

    capture: Capture = Capture.NONE
    scopes: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        unknown = sorted(self.scopes - set(GRAPH_SCOPES))
        if unknown:
            raise ValueError(f"cuda_graph_modules names {unknown}; megatron-core knows {list(GRAPH_SCOPES)}")

    @property
    def routes(self) -> bool:
        """Whether the router's choice is within a graph."""
        return self.capture is not Capture.NONE and (not self.scopes or "moe_router" in self.scopes)


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Low-rank adapters of the language model's linear layers; everything else is frozen then."""

    rank: int
    targets: frozenset[str] = frozenset(ADAPTER_TARGETS)
    #: sequence_parallel_input_regather: keep the sharded input and gather it again in backward
    regather: bool = False

    def __post_init__(self) -> None:
        unknown = sorted(self.targets - set(ADAPTER_TARGETS))
        if self.rank < 1 or unknown:
            raise ValueError(
                f"adapters of rank {self.rank} at {sorted(self.targets)}: the rank must be 1 or more, "
                f"the memory model knows {list(ADAPTER_TARGETS)}"
            )


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How much is worked on at once, and what a sample holds."""

    micro: int
    total: int  #: global batch size
    sequence_length: int
    images: ImageLoad = field(default_factory=lambda: ImageLoad(patches=0, images=0))
    packed: bool = False  #: samples without padding behind each other: the sizes are upper bounds then


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """Everything that the estimate of a job's memory depends on."""

    text: TextShape
    layout: ParallelLayout
    batch: Batch
    vision: VisionShape | None = None
    tower_split: bool = False  #: vision_dp_when_cp: context-parallel ranks share the pictures
    recompute: Recompute = Recompute()
    optimizer: OptimizerSetup = OptimizerSetup()
    precision: Precision = Precision()
    sharding: Sharding = Sharding.NONE
    double_buffer: bool = False  #: of FSDP: units live in two buffers of the largest, for good
    frozen: Frozen = Frozen()
    routing: Routing = Routing()
    cross_entropy: CrossEntropy = CrossEntropy.NATIVE
    attention: Backend = Backend.FUSED
    implementation: Implementation = Implementation.PRODUCTION
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    rope_fusion: bool = False
    bias_activation_fusion: bool = True
    gradient_accumulation_fusion: bool = True
    softmax_in_float: bool = False  #: unfused attention keeps its probabilities in four bytes
    #: modules whose input waits in the host's memory between forward and backward
    offload: frozenset[str] = frozenset()
    #: the first layers of the model, whose activations wait in the host's memory (cpu_offloading)
    offloaded_layers: int = 0
    adapters: Adapters | None = None
    graphs: Graphs = Graphs()
    unknowns: Unknowns = Unknowns()
    deferred_embedding_gradient: bool = False  #: the output layer's weight gradients wait for the flush
    expandable_segments: bool = False
    user_buffers: bool = False  #: NCCL's (nccl_ub): pools that growing segments exclude
    card: Card = Card.HOPPER
    deterministic: bool = False  #: determinism asked of cuBLAS, which takes a larger workspace
    upstream: Upstream = NEWEST

    def __post_init__(self) -> None:
        batch, layout = self.batch, self.layout
        if min(batch.micro, batch.total, batch.sequence_length) < 1:
            raise ValueError(f"batch sizes and the sequence length must be 1 or more: {batch}")
        if batch.total % (batch.micro * layout.data):
            raise ValueError(
                f"the global batch {batch.total} does not divide by "
                f"micro batch {batch.micro} x dp {layout.data}"
            )
        if batch.sequence_length % (layout.context * layout.sequence_shard):
            raise ValueError(
                f"a sequence of {batch.sequence_length} does not divide by "
                f"cp {layout.context} x tp {layout.sequence_shard}"
            )
        if self.text.experts is not None and self.text.experts.count % layout.expert:
            raise ValueError(f"{self.text.experts.count} experts do not divide by ep {layout.expert}")
        unknown = sorted(self.offload - set(OFFLOAD_MODULES))
        if unknown:
            raise ValueError(f"offload_modules names {unknown}; megatron-core knows {list(OFFLOAD_MODULES)}")
        if self.offloaded_layers and (
            layout.pipeline > 1 or self.recompute.granularity is not Granularity.NONE
        ):
            raise ValueError("cpu_offloading of layers needs pipeline size 1 and no recompute")
        chunks = self.chunks
        if self.vision is not None and self.vision.deepstack > len(chunks[0][0].layers):
            raise ValueError(
                f"{self.vision.deepstack} deepstack levels need as many decoder layers on the first stage, "
                f"which has {len(chunks[0][0].layers)}: give num_layers_in_first_pipeline_stage more"
            )

    @property
    def chunks(self) -> tuple[tuple[Chunk, ...], ...]:
        """Chunks by pipeline rank, then by virtual stage."""
        return self.layout.chunks(len(self.text.layers), self.text.extra_prediction_layers > 0)

    @property
    def microbatches(self) -> int:
        """Micro-batches that a rank works off in a step."""
        return self.batch.total // (self.batch.micro * self.layout.data)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one context-parallel rank (N)."""
        return self.batch.sequence_length * self.batch.micro // self.layout.context

    @property
    def residual_tokens(self) -> int:
        """Tokens in the sequence-parallel region (n)."""
        return self.tokens // self.layout.sequence_shard

    @property
    def patches(self) -> int:
        """Patches of a micro-batch (P): every context-parallel rank has all, unless they share them."""
        patches = self.batch.images.patches * self.batch.micro
        return -(-patches // self.layout.context) if self.tower_split else patches
