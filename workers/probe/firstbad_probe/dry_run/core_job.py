"""A job for a dry run on Megatron Core alone: a GPT model by the names of Megatron-LM's arguments.

    python -m firstbad_probe core_job.py ARGUMENTS.json [hidden_size=1024 ...]

Needs no Bridge, so that a commit of Megatron-LM is tried by itself. Core's releases differ in the arguments
that they take: each call names all that it means, and what a release does not know by that name is left
out. What this job cannot express is refused, never left out.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

STEPS = 2
#: Arguments that change memory and are not expressed here; the values under which they ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "fp8": (None,),
    "fp4": (None,),
    "use_megatron_fsdp": (None, False),
    "use_custom_fsdp": (None, False),
    "use_torch_fsdp2": (None, False),
    "use_legacy_models": (None, False),
    "moe_enable_deepep": (None, False),
    "moe_use_legacy_grouped_gemm": (None, False),
    "enable_hyper_connections": (None, False),
    "linear_attention_type": (None,),
    "linear_attention_freq": (None,),
    "experimental_attention_variant": (None,),
    "attention_output_gate": (None, False),
    "pipeline_model_parallel_layout": (None,),
    "cuda_graph_impl": (None, "none"),
    "enable_cuda_graph": (None, False),
    "external_cuda_graph": (None, False),
    "fine_grained_activation_offloading": (None, False),
    "overlap_moe_expert_parallel_comm": (None, False),
    "optimizer_cpu_offload": (None, False),
    "use_transformer_engine_op_fuser": (None, False),
    "tp_comm_overlap": (None, False),
    "optimizer": (None, "adam"),
    "moe_token_dispatcher_type": (None, "alltoall", "allgather"),
    "mtp_num_layers": (None, 0),
}


class NotExpressed(ValueError):
    """An argument asks for what this job does not build."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("arguments", type=Path, help="a JSON object: Megatron-LM's arguments by name")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    arguments = json.loads(options.arguments.read_text(encoding="utf-8"))
    for word in options.overrides:
        key, _, text = word.partition("=")
        try:
            arguments[key] = json.loads(text)
        except ValueError:
            arguments[key] = text
    try:
        refuse(arguments)
    except NotExpressed as refusal:
        raise SystemExit(f"core_job: {refusal}") from None
    Training(arguments).run()


def refuse(arguments: Mapping[str, Any]) -> None:
    """Raises NotExpressed, naming the argument."""
    for key, allowed in REFUSED.items():
        if arguments.get(key) not in allowed:
            raise NotExpressed(f"{key}={arguments[key]!r} is not expressed by this job")


def known(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


class Training:
    """Two steps of a GPT model on tokens that are all alike."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._half = bool(self._get("bf16") or self._get("fp16"))
        self._type = torch.bfloat16 if self._get("bf16") else torch.half if self._half else torch.float32

    def run(self) -> None:
        self._begin()
        config = self._configuration()
        chunks = self._wrapped(config, self._models(config))
        optimizer = get_megatron_optimizer(self._optimizer(), chunks)
        config.finalize_model_grads_func = finalize_model_grads
        config.grad_scale_func = optimizer.scale_loss
        if self._get("overlap_grad_reduce"):
            hooks = [chunk.no_sync for chunk in chunks]
            config.no_sync_func = hooks if len(hooks) > 1 else hooks[0]
        micro, length = int(self._get("micro_batch_size", 1)), int(self._get("seq_length"))
        replicas = parallel_state.get_data_parallel_world_size()
        count = max(1, int(self._get("global_batch_size", micro * replicas)) // (micro * replicas))
        # As many as fill the pipeline twice: more of them repeat the same peak.
        stages = int(self._get("pipeline_model_parallel_size", 1))
        if count > 2 * stages * len(chunks):
            count = 2 * stages * len(chunks)
        train = get_forward_backward_func()
        for _ in range(STEPS):
            for chunk in chunks:
                chunk.zero_grad_buffer()
            optimizer.zero_grad()
            train(
                forward_step_func=self._forward_step,
                data_iterator=[None] * len(chunks) if len(chunks) > 1 else None,
                model=chunks if len(chunks) > 1 else chunks[0],
                num_microbatches=count,
                seq_length=length,
                micro_batch_size=micro,
                forward_only=False,
            )
            optimizer.step()

    def _get(self, name: str, default: Any = None) -> Any:
        value = self._arguments.get(name)
        return default if value is None else value

    def _begin(self) -> None:
        import os

        torch.distributed.init_process_group(
            backend="nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
        )
        parallel_state.initialize_model_parallel(
            **known(
                parallel_state.initialize_model_parallel,
                tensor_model_parallel_size=self._get("tensor_model_parallel_size", 1),
                pipeline_model_parallel_size=self._get("pipeline_model_parallel_size", 1),
                virtual_pipeline_model_parallel_size=self._virtual(),
                context_parallel_size=self._get("context_parallel_size", 1),
                expert_model_parallel_size=self._get("expert_model_parallel_size", 1),
                expert_tensor_parallel_size=self._get("expert_tensor_parallel_size"),
                num_distributed_optimizer_instances=self._get("num_distributed_optimizer_instances", 1),
                order="tp-cp-ep-pp-dp" if self._get("use_tp_pp_dp_mapping") else "tp-cp-ep-dp-pp",
            )
        )
        model_parallel_cuda_manual_seed(1)

    def _virtual(self) -> int | None:
        """Chunks of layers that each stage holds; None: one."""
        asked = self._get("num_virtual_stages_per_pipeline_rank")
        if asked is not None:
            return int(asked)
        each = self._get("num_layers_per_virtual_pipeline_stage")
        if each is None:
            return None
        stages = int(self._get("pipeline_model_parallel_size", 1))
        return int(self._get("num_layers")) // stages // int(each)

    def _configuration(self) -> Any:
        kind = MLATransformerConfig if self._get("multi_latent_attention") else TransformerConfig
        gated, fused = bool(self._get("swiglu")), _has_accumulating_product()
        names = inspect.signature(kind).parameters
        given = {key: value for key, value in self._arguments.items() if key in names and value is not None}
        # What Megatron-LM's own arguments default to, where Core's configuration does otherwise.
        given |= {
            "num_query_groups": self._get("num_query_groups") if self._get("group_query_attention") else None,
            "hidden_dropout": self._get("hidden_dropout", 0.1),
            "attention_dropout": self._get("attention_dropout", 0.1),
            "num_moe_experts": self._get("num_experts"),
            "gated_linear_unit": gated,
            "activation_func": torch.nn.functional.silu if gated else torch.nn.functional.gelu,
            "bias_activation_fusion": self._get(
                "bias_swiglu_fusion" if gated else "bias_gelu_fusion", not self._get("squared_relu")
            ),
            "bias_dropout_fusion": self._get("bias_dropout_fusion", True),
            "masked_softmax_fusion": False,  # a kernel of CUDA's that this job's attention does not ask for
            "persist_layer_norm": False,
            "gradient_accumulation_fusion": fused and self._get("gradient_accumulation_fusion", True),
            "sequence_parallel": bool(self._get("sequence_parallel"))
            and int(self._get("tensor_model_parallel_size", 1)) > 1,
            "virtual_pipeline_model_parallel_size": self._virtual(),
            "params_dtype": self._type,
            "pipeline_dtype": self._type,
            "attention_backend": getattr(AttnBackend, str(self._get("attention_backend", "auto"))),
            "moe_layer_freq": _pattern(self._get("moe_layer_freq", 1)),
            "recompute_modules": _words(self._get("recompute_modules")),
            "batch_p2p_comm": not self._get("overlap_p2p_comm", False),
            "cp_comm_type": None,
            "deallocate_pipeline_outputs": True,
            "use_cpu_initialization": False,
            "perform_initialization": False,
        }
        if not fused:
            fusions = ("moe_permute_fusion", "moe_router_fusion", "apply_rope_fusion", "moe_grouped_gemm")
            given |= dict.fromkeys((*fusions, "bias_activation_fusion"), False)
        if self._get("squared_relu"):
            given["activation_func"] = _squared_relu
        return kind(
            **{key: value for key, value in given.items() if key in names and value is not None},
        )

    def _layers(self, config: Any, chunk: int | None) -> Any:
        fused = _has_accumulating_product() and self._get("transformer_impl", "") != "local"
        if config.num_moe_experts:
            make = gpt_layer_specs.get_gpt_decoder_block_spec
            return make(
                config,
                **known(
                    make,
                    use_transformer_engine=fused,
                    normalization=self._get("normalization", "LayerNorm") if fused else "RMSNorm",
                    vp_stage=chunk,
                ),
            )
        make = (
            gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec
            if fused
            else gpt_layer_specs.get_gpt_layer_local_spec
        )
        return make(
            **known(
                make,
                qk_layernorm=bool(self._get("qk_layernorm")),
                multi_latent_attention=bool(self._get("multi_latent_attention")),
                # "RMSNorm" of the local layers means torch's norms: each follows the configuration.
                normalization=self._get("normalization", "LayerNorm") if fused else "RMSNorm",
            )
        )

    def _models(self, config: Any) -> list[torch.nn.Module]:
        models = []
        first, last = parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage
        for chunk in range(self._virtual() or 1):
            place = chunk if self._virtual() else None
            if place is not None:
                parallel_state.set_virtual_pipeline_model_parallel_rank(place)
            stage = {} if place is None else {"ignore_virtual": False, "vp_stage": place}
            learned = self._get("position_embedding_type", "learned_absolute")
            model: Any = GPTModel(
                **known(
                    GPTModel.__init__,
                    config=config,
                    transformer_layer_spec=self._layers(config, place),
                    vocab_size=int(self._get("padded_vocab_size", 51_200)),
                    max_sequence_length=int(self._get("max_position_embeddings", self._get("seq_length"))),
                    pre_process=first(**known(first, **stage)),
                    post_process=last(**known(last, **stage)),
                    fp16_lm_cross_entropy=bool(self._get("fp16_lm_cross_entropy", False)),
                    parallel_output=True,
                    share_embeddings_and_output_weights=not self._get(
                        "untie_embeddings_and_output_weights", False
                    ),
                    position_embedding_type="rope"
                    if self._get("use_rotary_position_embeddings")
                    else learned,
                    rotary_percent=float(self._get("rotary_percent", 1.0)),
                    rotary_base=int(self._get("rotary_base", 10_000)),
                    vp_stage=place,
                )
            )
            model.model_type = ModelType.encoder_or_decoder
            models.append(model)
        return models

    def _wrapped(self, config: Any, models: list[torch.nn.Module]) -> list[Any]:
        wide = self._get("accumulate_allreduce_grads_in_fp32", False)
        if self._get("bf16") and not self._get("grad_reduce_in_bf16"):
            wide = True
        overlaps = bool(self._get("overlap_grad_reduce"))
        replicas = parallel_state.get_data_parallel_world_size()
        ddp = DistributedDataParallelConfig(
            **known(
                DistributedDataParallelConfig,
                grad_reduce_in_fp32=wide,
                overlap_grad_reduce=overlaps,
                overlap_param_gather=bool(self._get("overlap_param_gather")),
                use_distributed_optimizer=bool(self._get("use_distributed_optimizer")),
                num_distributed_optimizer_instances=self._get("num_distributed_optimizer_instances", 1),
                check_for_nan_in_grad=bool(self._get("check_for_nan_in_loss_and_grad", True)),
                # Megatron-LM's own default.
                bucket_size=max(40_000_000, 1_000_000 * replicas) if overlaps else None,
            )
        )
        chunks = []
        for number, model in enumerate(models):
            module = model.cuda()
            if self._half:
                module = Float16Module(config, module)
            chunks.append(
                DistributedDataParallel(
                    config=config, ddp_config=ddp, module=module, disable_bucketing=number > 0
                )
            )
        return chunks

    def _optimizer(self) -> OptimizerConfig:
        names = inspect.signature(OptimizerConfig).parameters
        own = {
            "optimizer": "adam",
            "lr": 1e-4,
            "clip_grad": self._get("clip_grad", 1.0),
            "bf16": bool(self._get("bf16")),
            "fp16": bool(self._get("fp16")),
            "params_dtype": self._type,
            "use_distributed_optimizer": bool(self._get("use_distributed_optimizer")),
            "log_num_zeros_in_grad": bool(self._get("log_num_zeros_in_grad")),
            "use_precision_aware_optimizer": bool(self._get("use_precision_aware_optimizer")),
        }
        return OptimizerConfig(**{key: value for key, value in own.items() if key in names})

    def _forward_step(self, _: Any, model: Any, *__: Any) -> Any:
        length = int(self._get("seq_length")) // int(self._get("context_parallel_size", 1))
        shape = (int(self._get("micro_batch_size", 1)), length)
        tokens = torch.ones(shape, dtype=torch.int64)
        places = torch.arange(length).expand(shape).contiguous()
        losses = model(tokens, places, None, labels=tokens)
        return losses, partial(_mean, torch.ones(shape))


def _mean(mask: torch.Tensor, losses: torch.Tensor) -> Any:
    mean = (losses.float().view(-1) * mask.view(-1)).sum() / mask.sum()
    return mean, {"lm loss": mean.detach().clone()}


def _squared_relu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.pow(torch.nn.functional.relu(tensor), 2)


def _has_accumulating_product() -> bool:
    """Whether production layers run here: with them comes apex's product."""
    try:
        importlib.import_module("fused_weight_gradient_mlp_cuda")
    except ImportError:
        return False
    return True


def _pattern(frequency: Any) -> Any:
    """`moe_layer_freq` as a number or a list; Megatron-LM takes "([0]*1+[1]*15)" too."""
    if not isinstance(frequency, str):
        return frequency
    if frequency.isdigit():
        return int(frequency)
    found: list[int] = []
    for kind, times in re.findall(r"\[(\d)\]\s*\*\s*(\d+)", frequency):
        found += [int(kind)] * int(times)
    return found


def _words(value: Any) -> Any:
    return re.findall(r"\w+", value) if isinstance(value, str) else value


if __name__ == "__main__":
    main()
