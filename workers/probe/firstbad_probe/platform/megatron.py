"""Patches of Megatron Core and Bridge for a CPU, installed as their modules are imported.

Each one looks for the attribute that it replaces, never at a version, and is
counted when used. Configuration values that only a GPU can honour are switched
off when training starts; they are counted too, under the name of the key.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.patches import Patches

# Section of the configuration, key, and the value that a CPU can honour. Each
# was left at its GPU value first and failed; fusions that are plain torch
# (swiglu, bias and dropout) run, and stay as the job sets them.
Values = tuple[tuple[str, str, Any], ...]
WITHOUT_FUSED_KERNELS: Values = (
    # Where fused kernels are stood in for, nothing is exchanged either, and the backend stays the job's.
    ("dist", "distributed_backend", "gloo"),
    ("model", "moe_permute_fusion", False),  # Transformer Engine
    ("model", "moe_router_fusion", False),  # Transformer Engine
    ("model", "apply_rope_fusion", False),  # Transformer Engine
    ("model", "masked_softmax_fusion", False),  # a CUDA extension, in half precision
    ("model", "gradient_accumulation_fusion", False),  # a CUDA extension
)
ALWAYS: Values = (("model", "persist_layer_norm", False),)  # apex


def install(patches: Patches, callbacks: ImportCallbacks, *, local_layers: bool) -> None:
    def after(module_name: str, patch: Callable[[Any, Patches], None]) -> None:
        callbacks.after(module_name, lambda module: patch(module, patches))

    _gloo_exchange(patches)
    after("megatron.core.tensor_parallel.random", _random_states)
    after("megatron.core.transformer.moe.moe_utils", _router_without_transformer_engine)
    after("megatron.core.transformer.torch_norm", _norm_under_sequence_parallelism)
    if local_layers:
        after("megatron.core.models.gpt.gpt_layer_specs", _local_layers)
    after("megatron.core.datasets.utils", _no_helpers_to_compile)
    after("megatron.bridge.training.initialize", _initialization_without_cuda)
    values = (*WITHOUT_FUSED_KERNELS, *ALWAYS) if local_layers else ALWAYS
    after("megatron.bridge.training.pretrain", functools.partial(_configuration, values=values))


def _gloo_exchange(patches: Patches) -> None:
    """NCCL takes split sizes as tensors or arrays; gloo wants lists of int and dense input."""
    exchange = torch.distributed.all_to_all_single

    def integers(sizes: Any) -> list[int] | None:
        return None if sizes is None else [int(size) for size in sizes]

    @functools.wraps(exchange)
    def all_to_all_single(
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        patches.use("gloo all_to_all_single")
        splits = integers(output_split_sizes), integers(input_split_sizes)
        return exchange(output, input.contiguous(), *splits, group=group, async_op=async_op)

    torch.distributed.all_to_all_single = all_to_all_single


def _random_states(module: Any, patches: Patches) -> None:
    """The tracker reads and writes raw device generators: give it the CPU's."""
    module._get_cuda_rng_state = patches.counted(
        "random state of the CPU", lambda *_, **__: torch.get_rng_state()
    )
    module._set_cuda_rng_state = patches.counted(
        "random state of the CPU", lambda state, *_, **__: torch.set_rng_state(state)
    )
    if not hasattr(module, "FP8GlobalStateManager"):
        # Core 0.16 names these without having imported them where Transformer Engine is absent.
        module.FP8GlobalStateManager = type(
            "FP8GlobalStateManager",
            (),
            {
                "is_fp8_enabled": staticmethod(lambda: False),
                "get_fp8_recipe": staticmethod(lambda: None),
            },
        )
        for name in ("activation_recompute_forward", "fp8_autocast"):
            setattr(
                module,
                name,
                patches.counted(f"no-op {name}", lambda *_, **__: contextlib.nullcontext()),
            )


def _router_without_transformer_engine(module: Any, patches: Patches) -> None:
    """Core 0.16 asks whether this name is None, but leaves it unbound without Transformer Engine."""
    if not hasattr(module, "te_general_gemm"):
        module.te_general_gemm = None
        patches.use("te_general_gemm is None")


def _norm_under_sequence_parallelism(module: Any, patches: Patches) -> None:
    """torch's norms refuse sequence parallelism; mark their weights as Transformer Engine's are."""
    make = module.WrappedTorchNorm.__new__

    def new(cls: type, config: Any, *args: Any, **keywords: Any) -> torch.nn.Module:
        norm: torch.nn.Module
        if not config.sequence_parallel:
            norm = make(cls, config, *args, **keywords)
            return norm
        patches.use("norm under sequence parallelism")
        config.sequence_parallel = False
        try:
            norm = make(cls, config, *args, **keywords)
        finally:
            config.sequence_parallel = True
        for parameter in norm.parameters():
            parameter.sequence_parallel = True  # type: ignore[attr-defined]
        return norm

    module.WrappedTorchNorm.__new__ = new


def _local_layers(module: Any, patches: Patches) -> None:
    """Megatron Core's own unfused layers wherever Transformer Engine's are asked for."""
    local = module.get_gpt_layer_local_spec
    known = set(inspect.signature(local).parameters)

    @functools.wraps(module.get_gpt_layer_with_transformer_engine_spec)
    def local_spec(*args: Any, **keywords: Any) -> Any:
        patches.use("local layers instead of Transformer Engine's")
        asked = signature.bind_partial(*args, **keywords).arguments
        asked = {key: value for key, value in asked.items() if key in known}
        # RMSNorm here means "torch's norms": each then follows the configuration's own choice.
        asked.update(moe_grouped_gemm=False, fp8=None, normalization="RMSNorm")
        return local(**{key: value for key, value in asked.items() if key in known})

    signature = inspect.signature(module.get_gpt_layer_with_transformer_engine_spec)
    module.get_gpt_layer_with_transformer_engine_spec = local_spec


def _no_helpers_to_compile(module: Any, patches: Patches) -> None:
    """The C++ index builder serves text corpora, which no vision-language run here reads."""
    module.compile_helpers = patches.counted("compile_helpers", lambda *_: None)


def _initialization_without_cuda(module: Any, patches: Patches) -> None:
    initialize = module.initialize_megatron

    @functools.wraps(initialize)
    def initialize_megatron(*args: Any, **keywords: Any) -> Any:
        if len(args) < 2:
            patches.use("allow_no_cuda")
            keywords["allow_no_cuda"] = True
        return initialize(*args, **keywords)

    module.initialize_megatron = initialize_megatron


def _configuration(module: Any, patches: Patches, values: Values) -> None:
    """Switch off what only a GPU can honour, just before Bridge validates the configuration."""
    train = module.pretrain

    @functools.wraps(train)
    def pretrain(config: Any, *args: Any, **keywords: Any) -> Any:
        for section_name, key, value in values:
            section = getattr(config, section_name, None)
            if hasattr(section, key) and getattr(section, key) != value:
                patches.use(f"configuration {section_name}.{key}={value}")
                setattr(section, key, value)
        return train(config, *args, **keywords)

    module.pretrain = pretrain
