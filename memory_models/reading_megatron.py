"""Megatron-LM's command-line arguments, read into a TrainingJob.

Arguments by their argparse destination, as Megatron's own ``args`` holds them; what a run
does not give is taken from the defaults of its commit where the caller has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_models.job import (
    Backend,
    Batch,
    Capture,
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
from memory_models.layout import ParallelLayout
from memory_models.megatron_shapes import Arguments, read_layers, read_text
from memory_models.reading import Reading
from memory_models.reading_choices import STASH_PAGES
from memory_models.reading_values import dtype_bytes
from memory_models.upstream import NEWEST, Upstream

#: Arguments that change memory and that the model does not follow.
_NOT_MODELLED = (
    "fp4",
    "fp4_format",
    "tp_comm_overlap",
    "delay_wgrad_compute",
    "use_torch_fsdp2",
    "encoder_tensor_model_parallel_size",
    "distribute_saved_activations",
)


def read_megatron_arguments(
    given: Mapping[str, Any],
    *,
    world_size: int,
    padded_vocabulary: int,
    defaults: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    card: Card = Card.HOPPER,
    imbalance: float = 1.0,
    upstream: Upstream = NEWEST,
) -> Reading:
    """The job of a Megatron-LM run.

    ``padded_vocabulary`` is what the tokenizer comes to, which no argument says. Raises
    ValueError where the job cannot be laid out or an argument is missing.
    """
    arguments = Arguments(given, defaults or {})
    notes = list(upstream.told())
    layers, custom = read_layers(arguments)
    layout = _layout(arguments, world_size, custom)
    precision = _precision(arguments)
    local = arguments.get("transformer_impl") == "local"
    micro = arguments.integer("micro_batch_size", 1)
    job = TrainingJob(
        text=read_text(arguments, layers, padded_vocabulary),
        layout=layout,
        batch=Batch(
            micro=micro,
            total=_batch_size(arguments, micro * layout.data),
            sequence_length=arguments.integer("seq_length") + _image_tokens(arguments),
        ),
        recompute=_recompute(arguments),
        optimizer=_optimizer(arguments, precision),
        precision=precision,
        sharding=_sharding(arguments),
        frozen=Frozen(language=arguments.flag("freeze_LM")),
        routing=Routing(
            dispatcher=Dispatcher(arguments.get("moe_token_dispatcher_type", "allgather")),
            imbalance=imbalance,
            capacity_factor=arguments.get("moe_expert_capacity_factor"),
            pad_to_capacity=arguments.flag("moe_pad_expert_input_to_capacity"),
            rank_capacity=arguments.get("moe_expert_rank_capacity_factor"),
            stash=float(arguments.get("moe_paged_stash_buffer_size_factor_cuda", STASH_PAGES))
            if arguments.flag("moe_paged_stash")
            else None,
            force_balance=arguments.flag("moe_router_force_load_balancing"),
            fused_permutation=arguments.flag("moe_permute_fusion"),
            grouped_gemm=arguments.flag("moe_grouped_gemm"),
            shared_overlap=arguments.flag("moe_shared_expert_overlap"),
            exchange_overlap=arguments.flag("overlap_moe_expert_parallel_comm"),
            backend=str(arguments.get("moe_flex_dispatcher_backend", "deepep")),
        ),
        cross_entropy=_cross_entropy(arguments),
        attention=_attention(arguments, local, environment or {}, card),
        implementation=Implementation.LOCAL if local else Implementation.PRODUCTION,
        hidden_dropout=float(arguments.get("hidden_dropout", 0.1)),
        attention_dropout=float(arguments.get("attention_dropout", 0.1)),
        rope_fusion=arguments.flag("apply_rope_fusion"),
        bias_activation_fusion=arguments.flag("use_fused_weighted_squared_relu")
        if arguments.flag("squared_relu")
        else arguments.flag("bias_swiglu_fusion"),
        gradient_accumulation_fusion=arguments.flag("gradient_accumulation_fusion"),
        softmax_in_float=(
            arguments.flag("attention_softmax_in_fp32") or arguments.flag("apply_query_key_layer_scaling")
        )
        and (arguments.get("masked_softmax_fusion") is False or "img_h" in given),
        offload=frozenset(arguments.words("offload_modules"))
        if arguments.flag("fine_grained_activation_offloading")
        else frozenset(),
        offloaded_layers=arguments.integer("cpu_offloading_num_layers", 0),
        double_buffer=arguments.flag("fsdp_double_buffer") or arguments.flag("use_nccl_ub"),
        user_buffers=arguments.flag("use_nccl_ub"),
        graphs=_graphs(arguments),
        deferred_embedding_gradient=arguments.flag("defer_embedding_wgrad_compute"),
        expandable_segments="expandable_segments:True"
        in str((environment or {}).get("PYTORCH_CUDA_ALLOC_CONF", "")),
        card=card,
        deterministic=arguments.flag("deterministic_mode"),
        upstream=upstream,
    )
    ignored = tuple(
        f"--{name.replace('_', '-')}: not followed"
        for name in _NOT_MODELLED
        if arguments.get(name) not in (None, False, 0, "none", "")
    )
    return Reading(job=job, ignored=ignored, notes=tuple(notes))


def _batch_size(arguments: Arguments, least: int) -> int:
    """The samples of a step; of a schedule of sizes ("0:384 200B:768") those that it starts with."""
    schedule = str(arguments.get("step_batch_size_schedule") or "").split()
    if not schedule:
        return arguments.integer("global_batch_size", least)
    start, _, size = schedule[0].partition(":")
    if start != "0" or not size.isdigit():
        raise ValueError(f"--step-batch-size-schedule starts with {schedule[0]!r}, where 0:SIZE is needed")
    return int(size)


def _image_tokens(arguments: Arguments) -> int:
    """Tokens that pretrain_vlm.py puts before the text: one for each patch of its only image."""
    if not arguments.get("img_h"):
        return 0
    patch = arguments.integer("patch_dim", 16)
    return (arguments.integer("img_h") // patch) * (arguments.integer("img_w") // patch)


def _precision(arguments: Arguments) -> Precision:
    fp8 = arguments.get("fp8") or arguments.get("fp8_format")
    quantised = bool(fp8 or arguments.get("fp4_format"))
    half = arguments.flag("bf16") or arguments.flag("fp16") or quantised
    in_float = arguments.flag("accumulate_allreduce_grads_in_fp32") or not half
    if half and not arguments.flag("fp16") and not arguments.flag("grad_reduce_in_bf16"):
        in_float = True
    return Precision(
        parameter_bytes=2 if half else 4,
        activation_bytes=2 if half else 4,
        gradient_bytes=4 if in_float else 2,
        fp8=quantised,
        fp8_parameters=arguments.flag("fp8_param_gather") or arguments.flag("fp8_param"),
        fp8_recipe=str(arguments.get("fp8_recipe") or "delayed") if fp8 else "nvfp4",
        fp16=arguments.flag("fp16"),
    )


def _layout(arguments: Arguments, world_size: int, custom: str | None) -> ParallelLayout:
    tensor = arguments.integer("tensor_model_parallel_size", 1)
    pipeline = arguments.integer("pipeline_model_parallel_size", 1)
    pattern = arguments.get("pipeline_model_parallel_layout")
    custom = str(pattern).replace("\\", "").strip("\"'") if pattern else custom
    expert = arguments.integer("expert_model_parallel_size", 1)
    return ParallelLayout(
        world_size=world_size,
        tensor=tensor,
        pipeline=pipeline,
        context=arguments.integer("context_parallel_size", 1),
        expert=expert,
        expert_tensor=arguments.integer("expert_tensor_parallel_size", tensor)
        if arguments.get("num_experts")
        else 1,
        virtual_pipeline=_virtual(arguments, pipeline),
        sequence_parallel=arguments.flag("sequence_parallel") and tensor > 1,
        first_stage_layers=arguments.get("decoder_first_pipeline_num_layers"),
        last_stage_layers=arguments.get("decoder_last_pipeline_num_layers"),
        embedding_as_layer=arguments.flag("account_for_embedding_in_pipeline_split"),
        loss_as_layer=arguments.flag("account_for_loss_in_pipeline_split"),
        custom=custom,
        microbatch_group=arguments.get("microbatch_group_size_per_vp_stage")
        or arguments.get("microbatch_group_size_per_virtual_pipeline_stage"),
    )


def _virtual(arguments: Arguments, pipeline: int) -> int:
    """Chunks of a rank: given as such, or as the layers of one chunk."""
    chunks = arguments.get("num_virtual_stages_per_pipeline_rank")
    if chunks:
        return int(chunks)
    layers = arguments.get("num_layers_per_virtual_pipeline_stage")
    if not layers or pipeline == 1:
        return 1
    total = arguments.integer("num_layers")
    total += arguments.flag("account_for_embedding_in_pipeline_split")
    total += arguments.flag("account_for_loss_in_pipeline_split")
    return max(1, total // pipeline // int(layers))


def _graphs(arguments: Arguments) -> Graphs:
    """What is captured, by its present arguments or those of before 2026."""
    scopes = arguments.words("cuda_graph_modules") or arguments.words("cuda_graph_scope")
    capture = str(arguments.get("cuda_graph_impl") or "none")
    if capture == "none" and arguments.flag("enable_cuda_graph"):
        capture = "local"
    if capture == "none" and arguments.flag("external_cuda_graph"):
        capture = "transformer_engine"
    if "full_iteration" in scopes:
        capture = "full_iteration"
    known = frozenset(scopes) - {"full", "full_iteration"}
    return Graphs(capture=Capture(capture), scopes=known)


def _recompute(arguments: Arguments) -> Recompute:
    granularity = arguments.get("recompute_granularity")
    modules = arguments.words("recompute_modules")
    if arguments.flag("moe_layer_recompute"):
        granularity, modules = granularity or "selective", [*modules, "moe"]
    if arguments.flag("recompute_activations") and granularity is None:
        granularity = "selective"
    if granularity is None:
        return Recompute()
    if granularity == "selective":
        known = frozenset(modules or ["core_attn"]) - {"mhc"}
        return Recompute(granularity=Granularity.SELECTIVE, modules=known)
    return Recompute(
        granularity=Granularity.FULL,
        method=str(arguments.get("recompute_method", "uniform")),
        layers=arguments.integer("recompute_num_layers", 1),
    )


def _optimizer(arguments: Arguments, precision: Precision) -> OptimizerSetup:
    master = 4 if precision.parameter_bytes < 4 else 0
    kind = str(arguments.get("optimizer", "adam"))
    first = second = 4
    if arguments.flag("use_precision_aware_optimizer"):
        first, second = (
            dtype_bytes(arguments.get(name), 4) for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
        )
        main = dtype_bytes(arguments.get("main_params_dtype"), 4)
        master = 2 if master and main == 4 else (main if master else 0)
    if "muon" in kind or kind == "sgd":
        second = 0
    fraction = float(arguments.get("optimizer_offload_fraction", 1.0))
    return OptimizerSetup(
        distributed=arguments.flag("use_distributed_optimizer"),
        instances=arguments.integer("num_distributed_optimizer_instances", 1),
        master_bytes=master,
        first_moment_bytes=first,
        second_moment_bytes=second,
        offload_fraction=fraction if arguments.flag("optimizer_cpu_offload") else 0.0,
    )


def _sharding(arguments: Arguments) -> Sharding:
    if not (arguments.flag("use_megatron_fsdp") or arguments.flag("use_custom_fsdp")):
        return Sharding.NONE
    return Sharding(arguments.get("data_parallel_sharding_strategy", "no_shard"))


def _cross_entropy(arguments: Arguments) -> CrossEntropy:
    if not arguments.flag("cross_entropy_loss_fusion"):
        return CrossEntropy.UNFUSED
    implementation = str(arguments.get("cross_entropy_fusion_impl", "native"))
    return {"te": CrossEntropy.TRANSFORMER_ENGINE, "linear": CrossEntropy.LINEAR}.get(
        implementation, CrossEntropy.NATIVE
    )


def _attention(arguments: Arguments, local: bool, environment: Mapping[str, Any], card: Card) -> Backend:
    backend = str(arguments.get("attention_backend", "auto"))
    head = arguments.integer(
        "kv_channels", arguments.integer("hidden_size") // arguments.integer("num_attention_heads")
    )
    if head % 8:
        return Backend.UNFUSED  # no kernel takes such a head
    if arguments.flag("use_legacy_models"):
        backend = "auto"  # the legacy layers never hand the argument on
    if backend in ("unfused", "local"):
        return Backend.UNFUSED
    if local:
        return Backend.FLASH if arguments.flag("use_flash_attn") else Backend.UNFUSED
    off = [str(environment.get(name)) == "0" for name in ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")]
    if all(off):
        return Backend.UNFUSED
    if backend == "auto":
        # Transformer Engine takes cuDNN's kernel, unless it must be deterministic where cuDNN's is not.
        deterministic = str(environment.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1")) == "0"
        return Backend.FLASH if deterministic and card is not Card.HOPPER else Backend.FUSED
    return Backend(backend)
