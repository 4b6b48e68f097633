"""What the model is: the sizes of the language model, the vision tower and the experts.

Here live the sizes that the weights and the activations follow from, and nothing about how
they are spread over GPUs (layout) or trained (job). Sizes are elements, never bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from itertools import groupby

#: No model has more; a configuration that says so is a slip, and would cost minutes.
MOST_LAYERS = 1024


def layer_count(count: int) -> int:
    """The number of layers, if a model can have it; ValueError otherwise."""
    if not 0 < count <= MOST_LAYERS:
        raise ValueError(f"a model cannot have {count} layers: the memory model counts 1 to {MOST_LAYERS}")
    return count


class Mixer(StrEnum):
    """What mixes the tokens of a layer."""

    ATTENTION = "attention"
    MAMBA = "mamba"
    GATED_DELTA = "gated_delta"
    NONE = "none"


class FeedForward(StrEnum):
    """What a layer does to each token by itself."""

    DENSE = "dense"
    EXPERTS = "experts"
    NONE = "none"


class Norm(StrEnum):
    """The norm of the residual stream."""

    RMS = "rms"  #: a weight per channel
    LAYER = "layer"  #: a weight and a bias per channel


class Activation(StrEnum):
    """The non-linearity, and whether a gate doubles the first matrix."""

    SWIGLU = "swiglu"
    GELU = "gelu"
    SQUARED_RELU = "squared_relu"

    @property
    def gated(self) -> bool:
        return self is Activation.SWIGLU


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One transformer layer: a mixer, then a feed-forward part; hybrids have one of the two."""

    mixer: Mixer = Mixer.ATTENTION
    feed_forward: FeedForward = FeedForward.DENSE


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Grouped-query attention. ``heads * head_size`` need not be the hidden size."""

    heads: int
    groups: int  #: key and value heads
    head_size: int
    qk_norm: bool = False
    qkv_bias: bool = False
    output_gate: bool = False  #: a gate as wide as the query (Qwen3.5)

    @property
    def query_size(self) -> int:
        return self.heads * self.head_size

    @property
    def key_size(self) -> int:
        return self.groups * self.head_size


@dataclass(frozen=True, kw_only=True)
class LatentAttentionShape:
    """Multi-head latent attention (DeepSeek): queries, keys and values through low ranks."""

    heads: int
    query_rank: int | None
    key_value_rank: int
    head_size: int  #: of the part without rotation
    rotary_size: int
    value_size: int
    norm: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * (self.head_size + self.rotary_size)

    @property
    def output_size(self) -> int:
        return self.heads * self.value_size


@dataclass(frozen=True, kw_only=True)
class ExpertsShape:
    """Routed and shared experts of one mixture-of-experts layer."""

    count: int
    top_k: int
    size: int  #: feed-forward width of one expert
    shared_size: int = 0  #: 0: no shared expert
    shared_gate: bool = False
    latent_size: int = 0  #: 0: experts work on the hidden size
    router_bias: bool = False  #: the aux-loss-free balancing buffers

    def __post_init__(self) -> None:
        if not 0 < self.top_k <= self.count:
            raise ValueError(
                f"each token goes to {self.top_k} of {self.count} experts: top_k must be 1..{self.count}"
            )


@dataclass(frozen=True, kw_only=True)
class MambaShape:
    """A Mamba-2 mixer (state-space duality)."""

    heads: int
    head_size: int
    groups: int
    state_size: int
    convolution: int = 4

    @property
    def inner_size(self) -> int:
        return self.heads * self.head_size


@dataclass(frozen=True, kw_only=True)
class GatedDeltaShape:
    """A gated delta-rule mixer (Qwen3-Next, Qwen3.5)."""

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    convolution: int = 4


@dataclass(frozen=True, kw_only=True)
class TextShape:
    """The language model."""

    hidden_size: int
    layers: tuple[Layer, ...]
    attention: AttentionShape | LatentAttentionShape
    feed_forward_size: int
    vocabulary: int  #: padded rows of the embedding
    experts: ExpertsShape | None = None
    mamba: MambaShape | None = None
    gated_delta: GatedDeltaShape | None = None
    activation: Activation = Activation.SWIGLU
    norm: Norm = Norm.RMS
    linear_bias: bool = False
    tied_embeddings: bool = False
    learned_positions: int = 0  #: rows of a learned position table; 0: none
    rotary: bool = True
    extra_prediction_layers: int = 0  #: multi-token prediction depth
    residual_streams: int = 1  #: hyper-connections keep this many residuals

    def __post_init__(self) -> None:
        # Equal layers become one object: estimates tell kinds of layers apart by identity.
        kinds: dict[Layer, Layer] = {}
        object.__setattr__(self, "layers", tuple(kinds.setdefault(layer, layer) for layer in self.layers))
        if self.hidden_size <= 0 or self.vocabulary <= 0:
            raise ValueError("a language model needs a hidden size and a vocabulary above 0")
        needs_experts = any(layer.feed_forward is FeedForward.EXPERTS for layer in self.layers)
        if needs_experts and self.experts is None:
            raise ValueError("a layer has experts, but the model says nothing of their sizes")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Made once: results are kept under a model's shapes, and there may be hundreds of layers."""
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The layers that differ from each other, in order of their first."""
        return tuple(dict.fromkeys(self.layers))

    @cached_property
    def has_experts(self) -> bool:
        return any(layer.feed_forward is FeedForward.EXPERTS for layer in self.kinds)

    def runs(self, indices: tuple[int, ...]) -> tuple[tuple[Layer, int], ...]:
        """The layers at these places in order, those that follow each other and are equal as one run."""
        layers = (self.layers[index] for index in indices)
        return tuple((layer, sum(1 for _ in alike)) for layer, alike in groupby(layers))


class Tower(StrEnum):
    """The family of a vision tower, for the modules that it is built of."""

    QWEN = "qwen"  #: Qwen3-VL and Qwen3.5-VL
    GLM = "glm"  #: GLM-4.5V: gated MLPs, RMS norms in float, a merger of its own width


@dataclass(frozen=True, kw_only=True)
class VisionShape:
    """The vision tower and the projector that hands its output to the language model."""

    family: Tower = Tower.QWEN

    depth: int
    hidden_size: int
    heads: int
    feed_forward_size: int
    patch_size: int
    temporal_patch: int
    channels: int
    positions: int  #: rows of the learned position table
    merge: int  #: patches merged to one image token, along each side
    deepstack: int  #: extra mergers, whose output is added in the first decoder layers
    output_size: int  #: the hidden size of the language model
    #: Megatron's own tower (tensor parallel, full recompute); False: the Hugging Face one
    native: bool = True
    merger_size: int = 0  #: the inner width of a merger that is gated (GLM)

    def __post_init__(self) -> None:
        if self.family is not Tower.QWEN and (self.native or self.deepstack):
            raise ValueError(f"a tower of {self.family.value} is Hugging Face's, without deepstack levels")

    @property
    def merged_size(self) -> int:
        return self.hidden_size * self.merge**2

    @property
    def patch_elements(self) -> int:
        return self.channels * self.temporal_patch * self.patch_size**2


@dataclass(frozen=True, kw_only=True)
class ImageLoad:
    """What one sample brings in images.

    ``patches`` counts patches before merging, over all images of a sample; an image of
    1024 x 1024 pixels at patch 16 is 4096 patches and 1024 image tokens.
    """

    patches: int
    images: int = 1

    def __post_init__(self) -> None:
        if self.patches < 0 or self.images < 0:
            raise ValueError("a sample cannot have fewer than 0 images or patches")

    @classmethod
    def of_pixels(
        cls, height: int, width: int, *, images: int = 1, patch: int = 16, merge: int = 2
    ) -> ImageLoad:
        """``images`` pictures of ``height`` x ``width`` pixels, rounded to whole image tokens."""
        unit = patch * merge
        rows, columns = (max(unit, round(side / unit) * unit) // patch for side in (height, width))
        return cls(patches=rows * columns * images, images=images)

    @cached_property
    def patches_per_image(self) -> int:
        return self.patches // self.images if self.images else 0


#: The letters of a hybrid pattern: each layer of a hybrid has one of a mixer and a feed-forward part.
_PATTERN = {
    "M": Layer(mixer=Mixer.MAMBA, feed_forward=FeedForward.NONE),
    "*": Layer(mixer=Mixer.ATTENTION, feed_forward=FeedForward.NONE),
    "-": Layer(mixer=Mixer.NONE, feed_forward=FeedForward.DENSE),
    "E": Layer(mixer=Mixer.NONE, feed_forward=FeedForward.EXPERTS),
}


def layers_of_pattern(pattern: str) -> tuple[tuple[Layer, ...], str | None]:
    """The layers of "MEM*-|...", and the pipeline layout that its bars imply.

    What follows a "/" is the pattern of multi-token prediction. ValueError for another letter.
    """
    stages = pattern.split("/")[0].split("|")
    unknown = sorted({mark for stage in stages for mark in stage} - set(_PATTERN))
    if unknown:
        raise ValueError(f"the hybrid pattern {pattern[:60]!r} has {unknown}: it may have {list(_PATTERN)}")
    layers = tuple(_PATTERN[mark] for stage in stages for mark in stage)
    layer_count(len(layers))
    return layers, "|".join("t" * len(stage) for stage in stages) if len(stages) > 1 else None


def uniform_layers(count: int, *, dense_first: int = 0, experts: bool = False) -> tuple[Layer, ...]:
    """``count`` attention layers, the first ``dense_first`` dense, the rest with experts if asked."""
    kinds = (FeedForward.DENSE, FeedForward.EXPERTS if experts else FeedForward.DENSE)
    return tuple(Layer(feed_forward=kinds[index >= dense_first]) for index in range(count))
