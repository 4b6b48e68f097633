"""Megatron Bridge's resolved configuration, read into a TrainingJob.

The configuration is nested JSON: dtypes as "torch.bfloat16", enums by name, callables by
name. Whatever the memory model does not follow is listed in the answer, for silence would
be a lie; traps that make a configuration mean less than it says are told as notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memory_models.configuration_keys import HARMLESS_SECTIONS, HARMLESS_WORDS, NOT_MODELLED, RENAMED
from memory_models.job import (
    RECOMPUTE_MODULES,
    Backend,
    Batch,
    CrossEntropy,
    Dispatcher,
    Frozen,
    Granularity,
    Implementation,
    OptimizerSetup,
    Precision,
    Recompute,
    Routing,
    Sharding,
    TrainingJob,
)
from memory_models.layout import ParallelLayout
from memory_models.reading_shapes import read_text, read_vision
from memory_models.reading_values import Section, dtype_bytes
from memory_models.shapes import ImageLoad

#: The largest picture that Bridge's Qwen-VL collator lets through, in pixels.
DEFAULT_MAX_PIXELS = 1_003_520


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A job, and what its configuration says that the job does not."""

    job: TrainingJob
    ignored: tuple[str, ...]  #: keys that may change memory and are not followed, with why
    notes: tuple[str, ...]  #: traps and assumptions


def read_bridge_config(
    config: Mapping[str, Any], *, world_size: int, images: ImageLoad | None = None
) -> Reading:
    """The job that a resolved ConfigContainer describes, on ``world_size`` GPUs.

    ``images`` is what one sample brings; where it is None the data set's own bounds are taken
    and a note says so. Raises ValueError where the configuration cannot be laid out or a size
    is missing: the message names the key.
    """
    notes: list[str] = []
    config = _present_names(config, notes)
    model, ddp = Section("model", config), Section("ddp", config)
    optimizer, train = Section("optimizer", config), Section("train", config)
    dataset, dist = Section("dataset", config), Section("dist", config)
    for key in _IMAGE_KEYS:
        dataset.get(key)
    implementation = _implementation(model, dist, notes)
    vision = read_vision(model, notes)
    precision = _precision(config, model, ddp)
    layout = _layout(model, world_size, vision is not None, notes)
    job = TrainingJob(
        text=read_text(model, layout.tensor),
        vision=vision,
        layout=layout,
        batch=Batch(
            micro=train.integer("micro_batch_size"),
            total=train.integer("global_batch_size"),
            sequence_length=_sequence_length(model, dataset),
            images=images
            if images is not None
            else (_images(dataset, notes) if vision else ImageLoad(patches=0, images=0)),
        ),
        recompute=_recompute(model, notes),
        optimizer=_optimizer(optimizer, ddp, precision),
        precision=precision,
        sharding=_sharding(ddp, dist, notes),
        frozen=_frozen(model, vision is not None, notes),
        routing=_routing(model, notes),
        cross_entropy=_cross_entropy(model),
        attention=_attention(model, implementation),
        implementation=implementation,
        hidden_dropout=model.number("hidden_dropout", 0.0),
        attention_dropout=model.number("attention_dropout", 0.0),
        rope_fusion=model.flag("apply_rope_fusion"),
        softmax_in_float=model.flag("attention_softmax_in_fp32"),
        bias_activation_fusion=model.flag("bias_activation_fusion"),
        gradient_accumulation_fusion=model.flag("gradient_accumulation_fusion"),
        expandable_segments=_expandable(config),
    )
    if "mock" in str(dataset.get("_target_", "")).lower():
        notes.append("the data set is mock data: its images and its routing say nothing about a real run")
    sections = (model, ddp, optimizer, train, dataset, dist)
    return Reading(job=job, ignored=_ignored(config, sections), notes=tuple(notes))


def _present_names(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The configuration with every renamed key under its present name."""
    copy: dict[str, Any] = {
        name: dict(section) if isinstance(section, Mapping) else section for name, section in config.items()
    }
    for old, new in RENAMED.items():
        section, key = old.split(".")
        held = copy.get(section)
        if isinstance(held, dict) and key in held:
            value = held.pop(key)
            present = new.split(".")[1]
            if held.get(present) in (None, False, [], ""):
                held[present] = value
                if value not in (None, False, [], "", 0):
                    notes.append(f"{old} is read as {new}, its present name")
    return copy


def _implementation(model: Section, dist: Section, notes: list[str]) -> Implementation:
    """On gloo there is no GPU, so no fused kernel runs whatever the configuration says."""
    if dist.get("distributed_backend") == "gloo":
        notes.append("the backend is gloo: estimated as a CPU runs it, with megatron-core's unfused modules")
        return Implementation.UNFUSED
    if model.get("transformer_impl", "transformer_engine") == "local":
        return Implementation.LOCAL
    return Implementation.PRODUCTION


def _precision(config: Mapping[str, Any], model: Section, ddp: Section) -> Precision:
    mixed = config.get("mixed_precision")
    name = mixed if isinstance(mixed, str) else ""
    half = model.flag("bf16") or model.flag("fp16") or "bf16" in name or "fp16" in name
    declared = model.get("params_dtype")
    width = (
        2
        if half and declared in (None, "torch.float32", "float32")
        else dtype_bytes(declared, 2 if half else 4)
    )
    in_float = ddp.flag("grad_reduce_in_fp32") or name == "bf16_mixed" or width == 4
    fp8 = model.get("fp8")
    return Precision(
        parameter_bytes=width,
        activation_bytes=width,
        gradient_bytes=4 if in_float else 2,
        fp8=bool(fp8) or "fp8" in name,
        fp8_parameters=model.flag("fp8_param"),
        fp8_recipe=str(model.get("fp8_recipe") or "delayed"),
        fp16=model.flag("fp16"),
    )


def _layout(model: Section, world_size: int, vision: bool, notes: list[str]) -> ParallelLayout:
    tensor = model.integer("tensor_model_parallel_size", 1)
    expert = model.integer("expert_model_parallel_size", 1)
    expert_tensor = model.get("expert_tensor_parallel_size")
    if expert_tensor is None:
        expert_tensor = tensor
        if tensor > 1 and model.get("num_moe_experts"):
            notes.append(
                "expert_tensor_parallel_size is unset: read as tensor_model_parallel_size "
                "as megatron-core does; "
                "Bridge resolves it to 1 when EP > 1 since 6f2f546ef"
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


def _sequence_length(model: Section, dataset: Section) -> int:
    """The data set's length, which Bridge's runner copies into the model's."""
    for section in (model, dataset):
        value = section.get("seq_length")
        if isinstance(value, int) and value > 0:
            dataset.get("seq_length")
            return value
    raise ValueError("the configuration names no sequence length: set model.seq_length")


#: Keys of a data set that only bound the image load, which the caller may know better.
_IMAGE_KEYS = (
    "num_images",
    "images_per_sample",
    "image_size",
    "source",
    "task_encoder",
    "min_pixels",
    "max_pixels",
)


def _images(dataset: Section, notes: list[str]) -> ImageLoad:
    """What the data set's own bounds let one sample bring."""
    count = int(dataset.get("num_images") or dataset.get("images_per_sample") or 1)
    size = dataset.get("image_size")
    if isinstance(size, list) and len(size) == 2:
        return ImageLoad.of_pixels(int(size[0]), int(size[1]), images=count)
    source = dataset.get("source")
    keywords = source.get("adapter_kwargs") if isinstance(source, Mapping) else None
    if isinstance(keywords, Mapping) and "resized_height" in keywords:
        return ImageLoad.of_pixels(
            int(keywords["resized_height"]), int(keywords["resized_width"]), images=count
        )
    encoder = dataset.get("task_encoder")
    pixels = encoder.get("max_pixels") if isinstance(encoder, Mapping) else None
    pixels = int(pixels or dataset.get("max_pixels") or DEFAULT_MAX_PIXELS)
    notes.append(
        f"the image load is not known: {count} image of {pixels} pixels a sample "
        "is assumed, the largest that passes"
    )
    side = int(pixels**0.5)
    return ImageLoad.of_pixels(side, side, images=count)


def _recompute(model: Section, notes: list[str]) -> Recompute:
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


def _optimizer(optimizer: Section, ddp: Section, precision: Precision) -> OptimizerSetup:
    optimizer.get("bf16"), optimizer.get("fp16")  # the model's own, once more
    aware = optimizer.flag("use_precision_aware_optimizer")
    master = 4 if precision.parameter_bytes < 4 else 0
    names = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    main, first, second = (dtype_bytes(optimizer.get(name), 4) for name in names)
    kind = str(optimizer.get("optimizer", "adam")).lower()
    if aware and master:
        remainders = optimizer.flag("store_param_remainders") and main == 4 and precision.parameter_bytes == 2
        master = 2 if remainders else main
    if not aware:
        first = second = 4
    if "muon" in kind or kind == "sgd":
        second = 0
    offloaded = optimizer.flag("optimizer_cpu_offload")
    fraction = optimizer.number("optimizer_offload_fraction", 0.0)
    return OptimizerSetup(
        distributed=ddp.flag("use_distributed_optimizer") or optimizer.flag("use_distributed_optimizer"),
        instances=ddp.integer("num_distributed_optimizer_instances", 1),
        master_bytes=master,
        first_moment_bytes=first,
        second_moment_bytes=second,
        offload_fraction=fraction if offloaded else 0.0,
    )


def _sharding(ddp: Section, dist: Section, notes: list[str]) -> Sharding:
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


def _frozen(model: Section, vision: bool, notes: list[str]) -> Frozen:
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


def _routing(model: Section, notes: list[str]) -> Routing:
    dispatcher = Dispatcher(model.get("moe_token_dispatcher_type") or "allgather")
    backend = model.get("moe_flex_dispatcher_backend")
    if dispatcher is not Dispatcher.FLEX and backend in ("hybridep", "ncclep"):
        notes.append(
            f"moe_flex_dispatcher_backend {backend!r} does nothing "
            f"while the dispatcher is {dispatcher.value!r}"
        )
    balanced = model.flag("moe_router_force_load_balancing")
    if balanced:
        notes.append("the router is forced to balance: a real router's imbalance is hidden")
    capacity = model.get("moe_expert_capacity_factor")
    return Routing(
        dispatcher=dispatcher,
        capacity_factor=float(capacity) if capacity is not None else None,
        pad_to_capacity=model.flag("moe_pad_expert_input_to_capacity"),
        force_balance=balanced,
        fused_permutation=model.flag("moe_permute_fusion"),
        grouped_gemm=model.flag("moe_grouped_gemm"),
        shared_overlap=model.flag("moe_shared_expert_overlap"),
        exchange_overlap=model.flag("overlap_moe_expert_parallel_comm"),
    )


def _cross_entropy(model: Section) -> CrossEntropy:
    kind = model.get("cross_entropy_fusion_impl")
    if not model.flag("cross_entropy_loss_fusion"):
        return CrossEntropy.UNFUSED
    return {"te": CrossEntropy.TRANSFORMER_ENGINE, "linear": CrossEntropy.LINEAR}.get(
        str(kind), CrossEntropy.NATIVE
    )


def _attention(model: Section, implementation: Implementation) -> Backend:
    name = str(model.get("attention_backend") or "auto").lower().rsplit(".", 1)[-1]
    if name in ("unfused", "local") or implementation is not Implementation.PRODUCTION:
        return Backend.UNFUSED
    return Backend.FLASH if name == "flash" else Backend.FUSED


def _expandable(config: Mapping[str, Any]) -> bool:
    variables = config.get("env_vars")
    if not isinstance(variables, Mapping):
        return False
    return any(
        "expandable_segments:True" in str(variables.get(name, ""))
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )


def _ignored(config: Mapping[str, Any], sections: tuple[Section, ...]) -> tuple[str, ...]:
    """Keys that are set, were not read, and are not known to leave memory alone."""
    found: list[str] = []
    for key, what in NOT_MODELLED.items():
        section, _, name = key.partition(".")
        held = config.get(section)
        value = held.get(name) if name and isinstance(held, Mapping) else (held if not name else None)
        if value not in (None, False, 0, "", "none", "no_shard", [], {}):
            found.append(f"{key}: {what}")
    for read in sections:
        for name in read.unread():
            key = f"{read.name}.{name}"
            if key not in NOT_MODELLED and not any(word in name for word in HARMLESS_WORDS):
                found.append(f"{key}: unknown to the memory model")
    names = {read.name for read in sections}
    for name, value in config.items():
        if name in names or name in HARMLESS_SECTIONS or name.startswith("_") or name in NOT_MODELLED:
            continue
        if name not in ("mixed_precision", "comm_overlap") and value not in (None, {}, []):
            found.append(f"{name}: a section unknown to the memory model")
    return tuple(found)
