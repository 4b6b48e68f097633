"""A plain Megatron Bridge training script, as a team would write it: the probe's test job.

It trains a tiny Qwen3-VL-MoE on a real photograph through Bridge's own
`pretrain`. It knows nothing of CPUs or of the probe. Arguments are
`section.key=value` overrides of the configuration (`model.*`, `train.*`, ...)
and `job.*` for what this script itself decides.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from typing import Any

import skimage.data
import torch
from megatron.bridge import AutoBridge
from megatron.bridge.data.vlm_datasets.conversation_dataset import VLMConversationDataset
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DatasetProvider,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.vlm_step import forward_step
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2TokenizerFast
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig

VOCABULARY = 512
SPECIAL = {
    VOCABULARY - 4: "<|image_pad|>",
    VOCABULARY - 3: "<|video_pad|>",
    VOCABULARY - 2: "<|vision_start|>",
    VOCABULARY - 1: "<|vision_end|>",
}
SENTENCES = ("An astronaut stands in front of a flag.", "A space shuttle model is behind her.")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)


def architecture(layers: int, experts: int, inner: int) -> Qwen3VLMoeConfig:
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": inner,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [4, 2, 2], "rope_type": "default"},
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {
        "depth": 4,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_heads": 4,
        "out_hidden_size": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [1, 2],
    }
    identities = dict(
        zip(
            ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
            SPECIAL,
            strict=True,
        )
    )
    config = Qwen3VLMoeConfig(text_config=text, vision_config=vision, **identities)
    config.architectures = ["Qwen3VLMoeForConditionalGeneration"]
    return config


def build_processor() -> Qwen3VLProcessor:
    """A real processor whose byte-level tokenizer is trained here, since nothing is downloaded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 16,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 20, trainer)
    fill = [f"<|fill_{index}|>" for index in range(tokenizer.get_vocab_size(), VOCABULARY - 4)]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*fill, *SPECIAL.values())])
    fast = Qwen2TokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    for index, token in SPECIAL.items():
        name = token.strip("<|>").replace("_pad", "")
        setattr(fast, f"{name}_token", token)
        setattr(fast, f"{name}_token_id", index)
    images = Qwen2VLImageProcessor(
        patch_size=16,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return Qwen3VLProcessor(
        image_processor=images,
        tokenizer=fast,
        video_processor=Qwen3VLVideoProcessor(),
        chat_template=TEMPLATE,
    )


@dataclass(kw_only=True)
class Photographs(DatasetProvider):
    """Conversations about one photograph and its mirror image."""

    seq_length: int = 512
    skip_getting_attention_mask_from_dataset: bool = True
    dataloader_type: Any = "single"
    pack_sequences_in_batch: bool = False
    with_images: bool = True
    noise: bool = False

    def build_datasets(self, context: Any) -> tuple[Any, None, None]:
        photograph = skimage.data.astronaut()
        if self.noise:
            generator = torch.Generator().manual_seed(0)
            photograph = torch.randint(0, 256, photograph.shape, generator=generator).to(torch.uint8).numpy()
        examples = []
        for pixels, sentence in ((photograph, SENTENCES[0]), (photograph[:, ::-1].copy(), SENTENCES[1])):
            asked: list[dict[str, Any]] = [{"type": "text", "text": "Describe the image."}]
            if self.with_images:
                asked.insert(0, {"type": "image", "image": Image.fromarray(pixels)})
            answer = [{"type": "text", "text": sentence}]
            examples.append(
                {
                    "conversation": [
                        {"role": "user", "content": asked},
                        {"role": "assistant", "content": answer},
                    ]
                }
            )
        dataset = VLMConversationDataset(
            base_examples=examples,
            target_length=context.train_samples,
            processor=build_processor(),
        )
        return dataset, None, None


def build_configuration(job: dict[str, Any]) -> ConfigContainer:
    model = AutoBridge.from_hf_config(
        architecture(job.get("layers", 4), job.get("experts", 8), job.get("inner", 128))
    ).to_megatron_provider(load_weights=False)
    model.params_dtype = model.pipeline_dtype = torch.float32
    model.bf16 = False
    model.seq_length = 512
    model.freeze_language_model = model.freeze_vision_model = model.freeze_vision_projection = False
    if job.get("bf16"):
        model.params_dtype = model.pipeline_dtype = torch.bfloat16
        model.bf16 = True
    return ConfigContainer(
        model=model,
        train=TrainingConfig(
            train_iters=3, global_batch_size=2, micro_batch_size=1, eval_iters=0, eval_interval=1000
        ),
        optimizer=OptimizerConfig(
            optimizer="adam",
            lr=1e-3,
            min_lr=1e-4,
            use_distributed_optimizer=False,
            clip_grad=1.0,
            bf16=bool(job.get("bf16")),
            params_dtype=model.params_dtype,
        ),
        scheduler=SchedulerConfig(
            lr_decay_style="constant",
            lr_decay_iters=3,
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
        dataset=Photographs(num_workers=0),
        logger=LoggerConfig(log_interval=1),
        tokenizer=TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=VOCABULARY),
        checkpoint=CheckpointConfig(save=None, load=None),
        rng=RNGConfig(seed=1234),
        dist=DistributedInitConfig(),
    )


def main() -> None:
    overrides: dict[str, dict[str, Any]] = {}
    for argument in sys.argv[1:]:
        name, _, text = argument.partition("=")
        section, _, key = name.partition(".")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        overrides.setdefault(section, {})[key] = value
    job = overrides.pop("job", {})
    if job.get("fails"):
        raise RuntimeError(job["fails"])
    configuration = build_configuration(job)
    for section, values in overrides.items():
        for key, value in values.items():
            setattr(getattr(configuration, section), key, value)
    pretrain(configuration, forward_step)


if __name__ == "__main__":
    main()
