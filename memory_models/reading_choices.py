"""How a job is laid out and trained, out of the sections of a Bridge configuration.

One function a part of the job. Shapes are read by reading_shapes.py, the batch and its
images by reading_batch.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_models.job import (
    ADAPTER_TARGETS,
    GRAPH_SCOPES,
    OFFLOAD_MODULES,
    RECOMPUTE_MODULES,
    Adapters,
    Backend,
    Capture,
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
)
from memory_models.layout import ParallelLayout
from memory_models.reading_shapes import hybrid_pattern
from memory_models.reading_values import Section, dtype_bytes
from memory_models.shapes import layers_of_pattern
from memory_models.upstream import Change, Upstream

#: megatron-core's moe_paged_stash_buffer_size_factor_cuda where nothing is said.
STASH_PAGES = 1.1


def read_implementation(model: Section, dist: Section, notes: list[str]) -> Implementation:
    """On gloo there is no GPU, so no fused kernel runs whatever the configuration says."""
    if dist.get("distributed_backend") == "gloo":
        notes.append("the backend is gloo: estimated as a CPU runs it, with megatron-core's unfused modules")
        return Implementation.UNFUSED
    if model.get("transformer_impl", "transformer_engine") == "local":
        return Implementation.LOCAL
    return Implementation.PRODUCTION


def read_precision(config: Mapping[str, Any], model: Section, ddp: Section) -> Precision:
    mixed = config.get("mixed_precision")
    name = mixed if isinstance(mixed, str) else ""
    chosen = Section("mixed_precision", config if isinstance(mixed, Mapping) else {})
    half = any(section.flag(key) for section in (model, chosen) for key in ("bf16", "fp16"))
    half = half or "bf16" in name or "fp16" in name
    declared = model.get("params_dtype")
    width = (
        2
        if half and declared in (None, "torch.float32", "float32")
        else dtype_bytes(declared, 2 if half else 4)
    )
    in_float = ddp.flag("grad_reduce_in_fp32") or name == "bf16_mixed" or width == 4
    in_float = in_float or chosen.flag("grad_reduce_in_fp32")
    fp8 = model.get("fp8") or chosen.get("fp8")
    return Precision(
        parameter_bytes=width,
        activation_bytes=width,
        gradient_bytes=4 if in_float else 2,
        fp8=bool(fp8) or "fp8" in name,
        fp8_parameters=model.flag("fp8_param") or chosen.flag("fp8_param_gather"),
        fp8_recipe=str(chosen.get("fp8_recipe") or model.get("fp8_recipe") or "delayed"),
        fp16=model.flag("fp16"),
    )


def read_layout(
    model: Section, world_size: int, upstream: Upstream, notes: list[str], *, vision: bool
) -> ParallelLayout:
    tensor = model.integer("tensor_model_parallel_size", 1)
    expert = model.integer("expert_model_parallel_size", 1)
    expert_tensor, sparse = model.get("expert_tensor_parallel_size"), model.get("num_moe_experts")
    if expert_tensor is None:
        one = expert > 1 and upstream.has(Change.EXPERT_TENSOR_ONE)
        expert_tensor = 1 if one else tensor
        if tensor > 1 and sparse:
            notes.append(
                f"expert_tensor_parallel_size is unset: read as {expert_tensor}; Bridge resolves it to 1 "
                "where EP > 1 since 6f2f546ef (2026-07-01), and left it at tensor_model_parallel_size before"
            )
    custom = model.get("pipeline_model_parallel_layout")
    if isinstance(custom, list):
        custom = "|".join(
            "".join(
                {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}.get(str(name), "")
                for name in stage
            )
            for stage in custom
        )
    pattern = hybrid_pattern(model)
    if pattern is not None and not custom:
        custom = layers_of_pattern(pattern)[1]
    return ParallelLayout(
        world_size=world_size,
        tensor=tensor,
        pipeline=model.integer("pipeline_model_parallel_size", 1),
        context=model.integer("context_parallel_size", 1),
        expert=expert,
        expert_tensor=int(expert_tensor),
        virtual_pipeline=model.integer("virtual_pipeline_model_parallel_size", 1),
        sequence_parallel=tensor > 1 and (model.flag("sequence_parallel") or vision),
        first_stage_layers=model.get("num_layers_in_first_pipeline_stage"),
        last_stage_layers=model.get("num_layers_in_last_pipeline_stage"),
        embedding_as_layer=model.flag("account_for_embedding_in_pipeline_split"),
        loss_as_layer=model.flag("account_for_loss_in_pipeline_split"),
        custom=str(custom) if custom else None,
        microbatch_group=model.get("microbatch_group_size_per_vp_stage") or None,
    )


def read_recompute(model: Section, notes: list[str]) -> Recompute:
    """What is recomputed; method and modules stay while off, so that switching it on is one key."""
    granularity = model.get("recompute_granularity")
    modules = list(model.get("recompute_modules") or ["core_attn"])
    method, layers = model.get("recompute_method"), model.get("recompute_num_layers")
    if model.flag("moe_layer_recompute"):
        granularity, modules = granularity or "selective", [*modules, "moe"]
    unknown = sorted(set(modules) - set(RECOMPUTE_MODULES))
    if unknown and granularity == "selective":
        notes.append(f"recompute of {', '.join(unknown)} is not followed: its tensors are counted as kept")
    return Recompute(
        granularity=Granularity(granularity) if granularity else Granularity.NONE,
        method=str(method or "uniform"),
        layers=int(layers or 1),
        modules=frozenset(modules) & frozenset(RECOMPUTE_MODULES),
    )


def read_optimizer(optimizer: Section, ddp: Section, precision: Precision) -> OptimizerSetup:
    optimizer.get("bf16"), optimizer.get("fp16")  # the model's own, once more
    aware = optimizer.flag("use_precision_aware_optimizer")
    master = 4 if precision.parameter_bytes < 4 else 0
    names = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    main, first, second = (dtype_bytes(optimizer.get(name), 4) for name in names)
    kind = str(optimizer.get("optimizer", "adam")).lower()
    if aware and master:
        stored = optimizer.get("store_param_remainders") is not False  # on where nothing is said
        remainders = stored and main == 4 and precision.parameter_bytes == 2
        master = 2 if remainders else main
    if not aware:
        first = second = 4
    if "muon" in kind or kind == "sgd":
        second = 0
    offloaded = optimizer.flag("optimizer_cpu_offload")
    fraction = optimizer.number("optimizer_offload_fraction", 0.0)
    # Both are asked, so that neither counts as a key that nobody reads.
    wanted = ddp.flag("use_distributed_optimizer"), optimizer.flag("use_distributed_optimizer")
    return OptimizerSetup(
        distributed=any(wanted),
        bucketed=ddp.flag("overlap_grad_reduce"),
        instances=ddp.integer("num_distributed_optimizer_instances", 1),
        master_bytes=master,
        first_moment_bytes=first,
        second_moment_bytes=second,
        offload_fraction=fraction if offloaded else 0.0,
    )


def read_sharding(ddp: Section, dist: Section, notes: list[str]) -> Sharding:
    strategy = Sharding(ddp.get("data_parallel_sharding_strategy") or "no_shard")
    flags = ddp.flag("use_megatron_fsdp"), dist.flag("use_megatron_fsdp")
    if not any(flags):
        if strategy is not Sharding.NONE:
            notes.append(
                f"ddp.data_parallel_sharding_strategy is {strategy.value!r}, but use_megatron_fsdp is off: "
                "nothing is sharded; set ddp.use_megatron_fsdp and dist.use_megatron_fsdp"
            )
        return Sharding.NONE
    if not all(flags):
        notes.append("use_megatron_fsdp is set in only one of ddp and dist: Bridge wants both")
    return strategy


def read_frozen(model: Section, vision: bool, notes: list[str]) -> Frozen:
    frozen = Frozen(
        language=model.flag("freeze_language_model"),
        vision=model.flag("freeze_vision_model"),
        projector=model.flag("freeze_vision_projection"),
    )
    names = [
        name
        for name, held in (
            ("language model", frozen.language),
            ("vision tower", frozen.vision),
            ("projector", frozen.projector),
        )
        if held
    ]
    if vision and names:
        notes.append(f"frozen: {', '.join(names)}; memory and throughput say nothing about full fine-tuning")
    return frozen


def read_routing(model: Section, notes: list[str]) -> Routing:
    dispatcher = Dispatcher(model.get("moe_token_dispatcher_type") or "allgather")
    backend = model.get("moe_flex_dispatcher_backend")
    if dispatcher is not Dispatcher.FLEX and backend in ("hybridep", "ncclep"):
        notes.append(
            f"moe_flex_dispatcher_backend {backend!r} does nothing "
            f"while the dispatcher is {dispatcher.value!r}"
        )
    balanced = model.flag("moe_router_force_load_balancing")
    coefficient = model.get("moe_aux_loss_coeff")
    if coefficient == 0 and not balanced and not model.flag("moe_router_enable_expert_bias"):
        notes.append("model.moe_aux_loss_coeff is 0: nothing keeps the router balanced, see --router-load")
    if balanced:
        notes.append("the router is forced to balance: a real router's imbalance is hidden")
    capacity = model.get("moe_expert_capacity_factor")
    pages = model.number("moe_paged_stash_buffer_size_factor_cuda", STASH_PAGES)
    return Routing(
        dispatcher=dispatcher,
        capacity_factor=float(capacity) if capacity is not None else None,
        pad_to_capacity=model.flag("moe_pad_expert_input_to_capacity"),
        rank_capacity=model.get("moe_expert_rank_capacity_factor"),
        stash=pages if model.flag("moe_paged_stash") else None,
        force_balance=balanced,
        fused_permutation=model.flag("moe_permute_fusion"),
        grouped_gemm=model.flag("moe_grouped_gemm"),
        shared_overlap=model.flag("moe_shared_expert_overlap"),
        exchange_overlap=model.flag("overlap_moe_expert_parallel_comm"),
        backend=str(backend or "deepep"),
    )


def read_graphs(model: Section, notes: list[str]) -> Graphs:
    """What CUDA graphs capture; scopes that only other layers have are told."""
    capture = Capture(str(model.get("cuda_graph_impl") or "none"))
    given = model.get("cuda_graph_modules")
    scopes = frozenset([given] if isinstance(given, str) else given or ())
    unknown = sorted(scopes - set(GRAPH_SCOPES))
    if capture is Capture.NONE:
        if scopes:
            notes.append("model.cuda_graph_modules does nothing while model.cuda_graph_impl is none")
        return Graphs()
    if unknown:
        notes.append(f"CUDA-graph scopes {', '.join(unknown)} are not followed")
    if not scopes - set(unknown) and unknown:
        return Graphs()
    return Graphs(capture=capture, scopes=scopes & frozenset(GRAPH_SCOPES))


def read_offload(model: Section) -> tuple[frozenset[str], int]:
    """Modules whose inputs wait in the host's memory, and how many first layers do so whole."""
    modules = model.get("offload_modules") or ()
    layers = model.integer("cpu_offloading_num_layers", 0)
    fine = frozenset(modules) if model.flag("fine_grained_activation_offloading") else frozenset()
    return fine & frozenset(OFFLOAD_MODULES), layers if model.flag("cpu_offloading") else 0


def read_adapters(config: Mapping[str, Any], notes: list[str]) -> Adapters | None:
    """Low-rank adapters. Raises ValueError for another kind of them, whose weights are not counted."""
    held = config.get("peft")
    if not isinstance(held, Mapping) or not held:
        return None
    kind = str(held.get("_target_") or "LoRA").rsplit(".", 1)[-1]
    if kind not in ("LoRA", "DoRA", "VLMLoRA", "CanonicalLoRA"):
        raise ValueError(f"peft is {kind}: only low-rank adapters are counted")
    if kind != "LoRA":
        notes.append(f"peft is {kind}: counted as LoRA of its rank")
    targets = frozenset(
        str(name).rsplit(".", 1)[-1] for name in held.get("target_modules") or ADAPTER_TARGETS
    )
    unknown = sorted(targets - set(ADAPTER_TARGETS))
    if unknown:
        notes.append(f"adapters of {', '.join(unknown)} are not counted")
    notes.append("peft: all but the language model's adapters is counted as frozen")
    return Adapters(
        rank=int(held.get("dim") or 32),
        targets=targets & frozenset(ADAPTER_TARGETS),
        regather=bool(held.get("sequence_parallel_input_regather")),
    )


def read_cross_entropy(model: Section) -> CrossEntropy:
    kind = model.get("cross_entropy_fusion_impl")
    if not model.flag("cross_entropy_loss_fusion"):
        return CrossEntropy.UNFUSED
    return {"te": CrossEntropy.TRANSFORMER_ENGINE, "linear": CrossEntropy.LINEAR}.get(
        str(kind), CrossEntropy.NATIVE
    )


#: megatron-core's AttnBackend.
_ATTENTION_BACKENDS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}


def read_attention(model: Section, implementation: Implementation) -> Backend:
    given = model.get("attention_backend")
    if isinstance(given, Mapping):  # YAML holds an enum as its class and its value
        given = _ATTENTION_BACKENDS.get((given.get("_args_") or [5])[0], "auto")
    name = str(given or "auto").lower().rsplit(".", 1)[-1]
    if name in ("unfused", "local") or implementation is not Implementation.PRODUCTION:
        return Backend.UNFUSED
    return Backend.FLASH if name == "flash" else Backend.FUSED


def read_expandable(config: Mapping[str, Any]) -> bool:
    variables = config.get("env_vars")
    if not isinstance(variables, Mapping):
        return False
    return any(
        "expandable_segments:True" in str(variables.get(name, ""))
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )
