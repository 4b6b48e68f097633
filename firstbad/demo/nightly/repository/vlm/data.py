"""Conversations about photographs, as a Megatron Bridge dataset provider."""

from dataclasses import dataclass
from typing import Any, Literal

import nightly_photos
import torch
from megatron.bridge.data.vlm_datasets.collate import create_multiturn_loss_mask_by_search
from megatron.bridge.data.vlm_datasets.conversation_dataset import VLMConversationDataset
from megatron.bridge.data.vlm_datasets.token_utils import extract_skipped_token_ids
from megatron.bridge.training.config import DatasetBuildContext, DatasetProvider
from megatron.bridge.training.utils.visual_inputs import Qwen2_5_VLVisualInputs

from vlm.processor import processor

IGNORED = -100  #: a label that the loss does not count
QUESTION = "What does the photograph show?"


def conversation(photographs: list, caption: str) -> dict[str, Any]:
    """One question about some photographs, and its answer."""
    images = [{"type": "image", "image": photograph} for photograph in photographs]
    return {
        "conversation": [
            {"role": "user", "content": [*images, {"type": "text", "text": QUESTION}]},
            {"role": "assistant", "content": [{"type": "text", "text": caption}]},
        ]
    }


def examples(images_per_sample: int) -> list[dict[str, Any]]:
    """Every photograph once as the first of a sample, the next ones following it in a ring."""
    photographs = nightly_photos.load()
    count = len(photographs)
    found = []
    for first in range(count):
        chosen = [photographs[(first + offset) % count] for offset in range(images_per_sample)]
        images = [photograph.image for photograph in chosen]
        found.append(conversation(images, chosen[0].caption))
    return found


def images_of(example: dict[str, Any]) -> list:
    return [
        part["image"]
        for turn in example["conversation"]
        for part in turn["content"]
        if part["type"] == "image"
    ]


def collate(batch: list[dict[str, Any]], processor: Any, seq_length: int) -> dict[str, Any]:
    """Tokens, next-token labels and a loss mask of [samples, seq_length], and the patches of all images."""
    images = [image for example in batch for image in images_of(example)]
    inputs = processor(
        text=[processor.apply_chat_template(example["conversation"], tokenize=False) for example in batch],
        images=images or None,
        padding="max_length",
        max_length=seq_length,
        return_tensors="pt",
    )
    tokens = inputs["input_ids"]
    skipped = extract_skipped_token_ids(processor)
    answers = torch.tensor(
        [
            create_multiturn_loss_mask_by_search(example, row, processor, skipped)
            for example, row in zip(batch, tokens, strict=True)
        ],
        dtype=torch.float,
    )
    # A position predicts the token after it, so labels and mask move one to the left.
    labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORED)
    loss_mask = torch.nn.functional.pad(answers[:, 1:], (0, 1))
    return {
        "input_ids": tokens,
        "labels": labels.masked_fill(loss_mask == 0, IGNORED),
        "loss_mask": loss_mask,
        "position_ids": torch.arange(tokens.shape[1]).expand_as(tokens).contiguous(),
        "visual_inputs": Qwen2_5_VLVisualInputs(
            pixel_values=inputs.get("pixel_values"),
            image_grid_thw=inputs.get("image_grid_thw"),
        ),
    }


@dataclass(kw_only=True)
class PhotographConversations(DatasetProvider):
    """Real photographs with their captions, in a ring, padded to one length."""

    seq_length: int
    min_pixels: int
    max_pixels: int  #: a larger photograph is scaled down before it is cut into patches
    images_per_sample: int = 1
    dataloader_type: Literal["single", "cyclic", "external"] | None = "single"
    skip_getting_attention_mask_from_dataset: bool = True
    pack_sequences_in_batch: bool = False

    def build_datasets(self, context: DatasetBuildContext):
        base = examples(self.images_per_sample)
        captions = [turn["content"][-1]["text"] for example in base for turn in example["conversation"]]
        words = processor(captions, self.min_pixels, self.max_pixels)
        training = VLMConversationDataset(
            base_examples=base,
            target_length=context.train_samples,
            processor=words,
            collate_impl=lambda batch, words: collate(batch, words, self.seq_length),
        )
        return training, None, None
