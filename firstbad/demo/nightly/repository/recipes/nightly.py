"""The nightly run: a few steps of a small Qwen3-VL-MoE on photographs, to see that training still fits."""

from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    LoggerConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from vlm import model
from vlm.data import PhotographConversations

STEPS = 3
SEQUENCE_LENGTH = 512


def config() -> ConfigContainer:
    provider = model.provider(seq_length=SEQUENCE_LENGTH)
    provider.moe_token_dispatcher_type = "alltoall"
    provider.recompute_granularity = "selective"
    provider.recompute_modules = ["core_attn", "moe"]
    provider.freeze_language_model = False
    provider.freeze_vision_model = False
    provider.freeze_vision_projection = False
    return ConfigContainer(
        model=provider,
        train=TrainingConfig(
            train_iters=STEPS,
            global_batch_size=2,
            micro_batch_size=2,
            eval_iters=0,
            eval_interval=1000,
        ),
        optimizer=OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            min_lr=1e-4,
            clip_grad=1.0,
            use_distributed_optimizer=False,
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="constant",
            lr_decay_iters=STEPS,
            lr_warmup_iters=0,
            start_weight_decay=0.0,
            end_weight_decay=0.0,
            weight_decay_incr_style="constant",
        ),
        ddp=DistributedDataParallelConfig(
            use_distributed_optimizer=False,
            overlap_grad_reduce=False,
            overlap_param_gather=False,
            grad_reduce_in_fp32=True,
            average_in_collective=False,
        ),
        dataset=PhotographConversations(
            seq_length=SEQUENCE_LENGTH,
            min_pixels=128 * 128,
            max_pixels=288 * 288,
            images_per_sample=1,
            num_workers=0,
        ),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=model.VOCABULARY),
        checkpoint=CheckpointConfig(save=None, load=None),
        rng=RNGConfig(seed=1234),
    )
