"""A job for a dry run: the model of a Hugging Face config.json, trained as KEY=VALUE words say.

    python -m firstbad_probe job.py CONFIG.json [model.tensor_model_parallel_size=4 ...]

Nothing is downloaded: the configuration is a file, weights are random, data is the dry run's.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from megatron.bridge import AutoBridge
from megatron.bridge.training import config as settings
from megatron.bridge.training.pretrain import pretrain

_VISION_STEPS = ("qwen3_vl_step", "vlm_step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="a Hugging Face config.json")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="e.g. train.micro_batch_size=1")
    arguments = parser.parse_args()
    configuration = container(json.loads(arguments.config.read_text(encoding="utf-8")))
    for word in arguments.overrides:
        override(configuration, word)
    pretrain(configuration, forward_step(configuration))


def container(hugging_face: dict[str, Any]) -> Any:
    """Bridge's configuration: bf16 weights, fp32 gradients, distributed Adam, one sample a step."""
    import torch

    provider = provider_of(hugging_face)
    provider.params_dtype = provider.pipeline_dtype = torch.bfloat16
    provider.bf16, provider.fp16 = True, False
    for part in ("language_model", "vision_model", "vision_projection"):
        if hasattr(provider, f"freeze_{part}"):
            setattr(provider, f"freeze_{part}", False)
    provider.seq_length = 4096
    provider.language_max_sequence_length = 4096
    return settings.ConfigContainer(
        model=provider,
        train=settings.TrainingConfig(
            train_iters=2,
            global_batch_size=int(os.environ.get("WORLD_SIZE", "1")),
            micro_batch_size=1,
            eval_iters=0,
            eval_interval=1000,
        ),
        optimizer=settings.OptimizerConfig(
            optimizer="adam",
            lr=1e-4,
            min_lr=1e-5,
            clip_grad=1.0,
            bf16=True,
            params_dtype=torch.bfloat16,
            use_distributed_optimizer=True,
        ),
        scheduler=settings.SchedulerConfig(
            lr_decay_style="constant",
            lr_decay_iters=2,
            lr_warmup_iters=0,
            start_weight_decay=0.0,
            end_weight_decay=0.0,
            weight_decay_incr_style="constant",
        ),
        ddp=settings.DistributedDataParallelConfig(
            use_distributed_optimizer=True,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            grad_reduce_in_fp32=True,
        ),
        dataset=settings.MockGPTDatasetConfig(
            random_seed=1,
            seq_length=4096,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
        ),
        logger=settings.LoggerConfig(log_interval=1),
        tokenizer=settings.TokenizerConfig(
            tokenizer_type="NullTokenizer", vocab_size=vocabulary(hugging_face)
        ),
        checkpoint=settings.CheckpointConfig(save=None, load=None),
        rng=settings.RNGConfig(seed=1),
    )


def vocabulary(hugging_face: dict[str, Any]) -> int:
    return int(hugging_face.get("text_config", hugging_face)["vocab_size"])


def provider_of(hugging_face: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(hugging_face), encoding="utf-8")
        config = AutoConfig.from_pretrained(folder)
    if not config.architectures:
        raise SystemExit("the configuration names no architectures: Bridge chooses the model by them")
    return AutoBridge.from_hf_config(config).to_megatron_provider(load_weights=False)


def forward_step(configuration: Any) -> Any:
    """The step that Bridge's own recipes use for this kind of model, in this release."""
    import importlib

    names = _VISION_STEPS if getattr(configuration.model, "vision_config", None) is not None else ()
    for name in (*names, "gpt_step"):
        try:
            return importlib.import_module(f"megatron.bridge.training.{name}").forward_step
        except ModuleNotFoundError:
            continue
    raise SystemExit("this release of Megatron Bridge has no forward step for this kind of model")


def override(configuration: Any, word: str) -> None:
    path, equals, text = word.partition("=")
    *parts, key = path.split(".")
    section = configuration
    for part in parts:
        section = getattr(section, part, None)
    if not equals or not hasattr(section, key):
        raise SystemExit(f"{word!r} is not KEY=VALUE of this release's configuration")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    setattr(section, key, value)


if __name__ == "__main__":
    main()
