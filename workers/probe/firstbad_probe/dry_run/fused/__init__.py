"""Stand-ins for Transformer Engine, so that Megatron's own production layers run on fakes.

`import transformer_engine` gives these. Each layer makes the tensors that the
real one makes, keeps for backward what the real one keeps, and computes nothing.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import torch

from firstbad_probe.dry_run.fused import attention, experts, linear, matrices, norms, optimizers
from firstbad_probe.dry_run.fused.bases import Module, NotSimulated
from firstbad_probe.patches import Patches

#: The release whose interface and kept tensors the stand-ins have.
VERSION = "2.9.0"


class _Package(ModuleType):
    """Classes that have no stand-in may be named and subclassed; to make one refuses."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not name[0].isupper():
            raise AttributeError(f"dry run: {self.__name__} has no stand-in for {name}", name=name, obj=self)
        full_name = f"{self.__name__}.{name}"

        kind = type(name, (torch.nn.Module,), {"__init__": _refusing(full_name), "__module__": self.__name__})
        setattr(self, name, kind)
        return kind


class FP8GlobalStateManager:
    """Nothing is in fp8 here."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def is_fp8_calibration() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        return None

    @staticmethod
    def is_first_fp8_module() -> bool:
        return False


def fp8_autocast(enabled: bool = True, **_: Any) -> Any:
    if enabled:
        raise NotSimulated("fp8")
    return contextlib.nullcontext()


class CudaRNGStatesTracker:
    """Random states by name; nothing is drawn."""

    def __init__(self) -> None:
        self.states_: dict[str, Any] = {}

    def reset(self) -> None:
        self.states_ = {}

    def get_states(self) -> dict[str, Any]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        self.states_[name] = seed

    def fork(self, name: str = "model-parallel-rng") -> Any:
        return contextlib.nullcontext()


def _refusing(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotSimulated(name)

    return refuse


def install(patches: Patches) -> None:
    """Put the stand-ins where Transformer Engine's modules would be, even where it is installed."""
    patches.use(f"dry run: stand-ins for Transformer Engine {VERSION}")
    named: dict[str, dict[str, Any]] = {
        "": {"__version__": VERSION},
        "common": {},
        "common.recipe": {},
        "pytorch": {
            "Linear": linear.Linear,
            "LayerNormLinear": linear.LayerNormLinear,
            "GroupedLinear": linear.GroupedLinear,
            "LayerNorm": norms.LayerNorm,
            "RMSNorm": norms.RMSNorm,
            "DotProductAttention": attention.DotProductAttention,
            "fp8_autocast": fp8_autocast,
            "fp8_model_init": _refusing("transformer_engine.pytorch.fp8_model_init"),
        },
        "pytorch.attention": {
            "_SplitAlongDim": attention.SplitAlongDim,
            "apply_rotary_pos_emb": attention.apply_rotary_pos_emb,
            "DotProductAttention": attention.DotProductAttention,
        },
        "pytorch.attention.rope": {"apply_rotary_pos_emb": attention.apply_rotary_pos_emb},
        "pytorch.cross_entropy": {"parallel_cross_entropy": experts.parallel_cross_entropy},
        "pytorch.distributed": {
            "CudaRNGStatesTracker": CudaRNGStatesTracker,
            "activation_recompute_forward": lambda *_, **__: contextlib.nullcontext(),
            "is_fp8_activation_recompute_enabled": lambda: False,
            "get_all_rng_states": dict,
        },
        "pytorch.fp8": {
            "FP8GlobalStateManager": FP8GlobalStateManager,
            "fp8_autocast": fp8_autocast,
            "fp8_model_init": _refusing("transformer_engine.pytorch.fp8.fp8_model_init"),
        },
        "pytorch.module": {"Linear": linear.Linear, "LayerNormLinear": linear.LayerNormLinear},
        "pytorch.module.base": {
            "TransformerEngineBaseModule": Module,
            "get_dummy_wgrad": matrices.dummy_gradient,
        },
        "pytorch.ops": {},
        "pytorch.optimizers": {
            name: getattr(optimizers, name)
            for name in (
                "FusedAdam",
                "FusedSGD",
                "multi_tensor_applier",
                "multi_tensor_l2norm",
                "multi_tensor_scale",
            )
        },
        "pytorch.permutation": {
            name: getattr(experts, name)
            for name in (
                "moe_permute",
                "moe_permute_with_probs",
                "moe_sort_chunks_by_index",
                "moe_sort_chunks_by_index_with_probs",
                "moe_unpermute",
            )
        },
        "pytorch.tensor": {},
        "pytorch.tensor.float8_tensor": {},
        "pytorch.tensor.mxfp8_tensor": {},
        "pytorch.tensor.utils": {
            name: _refusing(f"transformer_engine.pytorch.tensor.utils.{name}")
            for name in ("cast_master_weights_to_fp8", "post_all_gather_processing", "replace_raw_data")
        },
        "pytorch.float8_tensor": {},
        "pytorch.router": {
            name: getattr(experts, name)
            for name in (
                "fused_compute_score_for_moe_aux_loss",
                "fused_moe_aux_loss",
                "fused_topk_with_score_function",
            )
        },
    }
    for path, names in named.items():
        _put("transformer_engine" + (f".{path}" if path else ""), names)
    # apex's accumulating product, which Megatron's own output layer calls.
    _put(
        "fused_weight_gradient_mlp_cuda",
        {name: lambda *_: None for name in ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16")},
    )


def _put(name: str, names: dict[str, Any]) -> None:
    package = _Package(name)
    package.__path__ = []
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    for key, value in names.items():
        setattr(package, key, value)
    sys.modules[name] = package
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, package)
