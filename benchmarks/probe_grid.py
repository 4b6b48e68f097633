"""The grid of memory_probe.py: what is varied about the demo's nightly training, on a CPU.

Four layers, eight experts, a tower of four blocks; sequences, pictures and widths are chosen so that the
activations of the parts under test exceed 64 MiB. A key is written onto the recipe's configuration as
`train.py KEY=VALUE` would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Sequences of 1024 tokens, two a micro-batch, a picture of 36 x 36 patches each; two steps, one steady.
BASE: dict[str, Any] = {
    "train.train_iters": 2,
    "dataset.seq_length": 1024,
    "model.seq_length": 1024,
    "dataset.max_pixels": 331_776,
    "model.recompute_granularity": None,
}
#: Sequences of 256 tokens, eight a micro-batch, pictures of 18 x 18 patches: little attention.
SHORT: dict[str, Any] = {
    "dataset.seq_length": 256,
    "model.seq_length": 256,
    "dataset.max_pixels": 82_944,
    "train.micro_batch_size": 8,
    "train.global_batch_size": 8,
}
ONE: dict[str, Any] = {"train.micro_batch_size": 1}
BALANCED: dict[str, Any] = {"model.moe_router_force_load_balancing": True}
SHARED: dict[str, Any] = {"model.moe_shared_expert_intermediate_size": 640}
VOCABULARY: dict[str, Any] = {"model.vocab_size": 16_384, "tokenizer.vocab_size": 16_384}
DISTRIBUTED: dict[str, Any] = {
    "ddp.use_distributed_optimizer": True,
    "optimizer.use_distributed_optimizer": True,
}
HALF: dict[str, Any] = {
    "model.bf16": True,
    "model.params_dtype": "torch.bfloat16",
    "model.pipeline_dtype": "torch.bfloat16",
    "optimizer.bf16": True,
    "optimizer.params_dtype": "torch.bfloat16",
}
#: Another architecture, which no term was read off.
OTHER: dict[str, Any] = {
    "dataset.seq_length": 768,
    "model.seq_length": 768,
    "train.micro_batch_size": 3,
    "train.global_batch_size": 3,
    "model.num_layers": 6,
    "model.hidden_size": 192,
    "model.num_attention_heads": 12,
    "model.num_query_groups": 4,
    "model.num_moe_experts": 16,
    "model.moe_router_topk": 4,
    "model.moe_ffn_hidden_size": 384,
    "model.vision_config.out_hidden_size": 192,
    "model.vision_config.hidden_size": 320,
    "model.vision_config.num_heads": 5,
    "model.vision_config.intermediate_size": 768,
    "model.vision_config.depth": 6,
    "model.vision_config.deepstack_visual_indexes": [1, 3],
}
#: A tower whose MLP is wider than all else, and attention of two heads.
WIDE_TOWER: dict[str, Any] = {
    "model.num_attention_heads": 2,
    "model.kv_channels": 64,
    "model.mrope_section": [16, 8, 8],
    "model.hf_text_config.head_dim": 64,
    "model.vision_config.depth": 2,
    "model.vision_config.deepstack_visual_indexes": [0],
    "model.vision_config.intermediate_size": 12_288,
}


def selective(*modules: str) -> dict[str, Any]:
    return {"model.recompute_granularity": "selective", "model.recompute_modules": list(modules)}


def full(method: str, layers: int) -> dict[str, Any]:
    return {
        "model.recompute_granularity": "full",
        "model.recompute_method": method,
        "model.recompute_num_layers": layers,
        "model.recompute_modules": None,
    }


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of the grid."""

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = "measured"  #: a module of probe_recipes/
    ranks: int = 1
    listed: bool = False  #: whether its storages are written down one by one

    @property
    def overrides(self) -> dict[str, Any]:
        return {**BASE, **self.keys}


def _recompute() -> Iterator[Case]:
    yield Case(name="no recompute", listed=True)
    yield Case(name="recompute of core_attn", keys=selective("core_attn"))
    yield Case(name="recompute of moe", keys=selective("moe"))
    yield Case(name="recompute of layernorm", keys=selective("layernorm"), listed=True)
    yield Case(name="recompute of core_attn and moe", keys=selective("core_attn", "moe"), listed=True)
    yield Case(name="recompute of moe_act, which a CPU ignores", keys=selective("moe_act"))
    yield Case(name="text", recipe="text")
    for layers in (1, 2):
        keys = full("uniform", layers)
        yield Case(
            name=f"text, full recompute, uniform {layers}", recipe="text", keys=keys, listed=layers == 2
        )
    for layers in (1, 3):
        yield Case(name=f"text, full recompute, block {layers}", recipe="text", keys=full("block", layers))


def _layers() -> Iterator[Case]:
    yield Case(name="shared experts", keys=SHARED, listed=True)
    yield Case(name="shared experts, recomputed", keys=SHARED | selective("shared_experts"))
    yield Case(name="dense layers beside experts", recipe="mixed")
    yield Case(name="dense layers beside experts, mlp recomputed", recipe="mixed", keys=selective("mlp"))
    yield Case(name="dense layers alone", recipe="dense", listed=True)
    yield Case(name="dense layers, text, full recompute", recipe="dense_text", keys=full("uniform", 1))
    yield Case(name="activation unfused", keys={"model.bias_activation_fusion": False}, listed=True)


def _batches() -> Iterator[Case]:
    yield Case(name="micro-batch of 1", keys=ONE)
    yield Case(name="micro-batch of 4", keys={"train.micro_batch_size": 4, "train.global_batch_size": 4})
    yield Case(name="three pictures a sample", keys=ONE | {"dataset.images_per_sample": 3})
    pictures = {"dataset.images_per_sample": 2, "dataset.max_pixels": 448 * 448}
    yield Case(name="two large pictures a sample", keys=pictures)


def _frozen() -> Iterator[Case]:
    parts = {"tower": "vision_model", "projector": "vision_projection", "language": "language_model"}
    for names in (
        ("tower",), ("projector",), ("language",), ("tower", "projector"), ("tower", "language"),
    ):  # fmt: skip
        keys = {f"model.freeze_{parts[name]}": True for name in names}
        yield Case(name=f"frozen {' and '.join(names)}", keys=keys, listed=names == ("tower", "language"))


def _layouts() -> Iterator[Case]:
    tensor, expert = {"model.tensor_model_parallel_size": 2}, {"model.expert_model_parallel_size": 2} | ONE
    pipeline = {
        "model.pipeline_model_parallel_size": 2,
        "train.micro_batch_size": 1,
        "train.global_batch_size": 4,
    }
    yield Case(name="TP 2", ranks=2, keys=tensor, listed=True)
    yield Case(name="TP 2, shared experts", ranks=2, keys=tensor | SHARED)
    yield Case(name="EP 2", ranks=2, keys=expert, listed=True)
    allgather = {"model.moe_token_dispatcher_type": "allgather"}
    yield Case(name="EP 2, allgather", ranks=2, keys=expert | allgather)
    balanced = expert | BALANCED | selective("core_attn", "moe")
    yield Case(name="EP 2, balanced, recompute of core_attn and moe", ranks=2, keys=balanced)
    both = tensor | {"model.expert_model_parallel_size": 2, "model.expert_tensor_parallel_size": 1}
    yield Case(name="TP 2 and EP 2", ranks=2, keys=both)
    yield Case(name="PP 2", ranks=2, keys=pipeline, listed=True)
    yield Case(name="PP 2, text, full recompute", ranks=2, recipe="text", keys=pipeline | full("uniform", 1))
    yield Case(name="DP 2, distributed optimizer", ranks=2, keys=ONE | DISTRIBUTED)
    yield Case(name="EP 2, distributed optimizer", ranks=2, keys=expert | DISTRIBUTED)


def _instants() -> Iterator[Case]:
    """Runs whose peak is not the backward pass of attention."""
    wide = {"model.moe_ffn_hidden_size": 1536}
    yield Case(name="peak in the loss", keys=VOCABULARY, listed=True)
    unfused = VOCABULARY | {"model.cross_entropy_loss_fusion": False}
    yield Case(name="peak in the loss, unfused", keys=unfused)
    experts = SHORT | wide | BALANCED
    yield Case(name="peak in the experts' backward", keys=experts | selective("moe"), listed=True)
    dense = SHORT | {"model.ffn_hidden_size": 4096} | selective("layernorm")
    yield Case(name="peak in the dense backward", recipe="dense", keys=dense, listed=True)
    yield Case(
        name="peak in the tower's backward", keys=WIDE_TOWER | selective("core_attn", "moe"), listed=True
    )
    states = {"dataset.seq_length": 128, "model.seq_length": 128} | ONE | selective("core_attn", "moe")
    yield Case(name="peak in the optimizer's step", recipe="text", keys=states)


def _precision() -> Iterator[Case]:
    yield Case(name="bf16", keys=HALF, listed=True)
    yield Case(name="bf16, recompute of core_attn and moe", keys=HALF | selective("core_attn", "moe"))


def _blind() -> Iterator[Case]:
    """First run when the terms stood, so that something shows what they do not cover."""
    yield Case(name="other sizes", keys=OTHER)
    recompute = selective("core_attn", "moe", "layernorm")
    yield Case(
        name="other sizes, frozen tower, recompute of core_attn, moe, layernorm",
        keys=OTHER | recompute | {"model.freeze_vision_model": True},
    )
    yield Case(
        name="other sizes, text, full recompute, uniform 3", recipe="text", keys=OTHER | full("uniform", 3)
    )
    both = {"model.tensor_model_parallel_size": 2, "model.pipeline_model_parallel_size": 2}
    batch = {"train.micro_batch_size": 1, "train.global_batch_size": 4}
    yield Case(name="other sizes, TP 2 and PP 2", ranks=4, keys=OTHER | both | batch)


GRID: tuple[Case, ...] = (
    *_recompute(),
    *_layers(),
    *_batches(),
    *_frozen(),
    *_layouts(),
    *_instants(),
    *_precision(),
    *_blind(),
)
