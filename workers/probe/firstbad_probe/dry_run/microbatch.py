"""One microbatch at full size: token ids, labels, masks and images, known where they steer sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes


@dataclass(frozen=True)
class Workload:
    """What a microbatch holds. Images are [height, width] in pixels, one tuple for each image of a sample."""

    sequence_length: int
    samples: int
    images: tuple[tuple[int, int], ...] = ()
    patch_size: int = 16
    merge_size: int = 2
    temporal_patch_size: int = 2
    channels: int = 3


@dataclass(frozen=True)
class TokenIds:
    """The special tokens of a vision-language model; -1 where it has none."""

    image: int = -1
    vision_start: int = -1
    vision_end: int = -1


_LABEL_MASKED = -100


def image_tokens(workload: Workload) -> int:
    """Tokens that the images of one sample take in the sequence."""
    return sum(rows * columns for _, rows, columns in _merged_grids(workload))


def _grids(workload: Workload) -> list[list[int]]:
    """[frames, rows, columns] in patches for each image of one sample."""
    patch = workload.patch_size
    return [[1, height // patch, width // patch] for height, width in workload.images]


def _merged_grids(workload: Workload) -> list[list[int]]:
    merge = workload.merge_size
    return [[frames, rows // merge, columns // merge] for frames, rows, columns in _grids(workload)]


def build(workload: Workload, ids: TokenIds, pixels_dtype: torch.dtype) -> dict[str, Any]:
    """The tensors of a batch as Bridge's data sets hand them over; pixel values alone are unknown.

    input_ids, labels, loss_mask, position_ids: [samples, sequence];
    pixel_values: [patches, channels x frames x patch x patch]; image_grid_thw: [images, 3].
    Raises ValueError if the images do not fit into the sequence.
    """
    length, samples = workload.sequence_length, workload.samples
    needed = image_tokens(workload) + 2 * len(workload.images)
    if needed >= length:
        raise ValueError(
            f"{len(workload.images)} images need {needed} tokens, and a sequence has {length}: "
            "take smaller images or a longer sequence"
        )
    tokens = torch.full((samples, length), 10, dtype=torch.int64)
    place = 1
    for _, rows, columns in _merged_grids(workload):
        count = rows * columns
        tokens[:, place] = ids.vision_start
        tokens[:, place + 1 : place + 1 + count] = ids.image
        tokens[:, place + 1 + count] = ids.vision_end
        place += count + 2
    labels = torch.roll(tokens, -1, 1)
    labels[labels == ids.image] = _LABEL_MASKED
    batch: dict[str, Any] = {
        "input_ids": tokens,
        "tokens": tokens,
        "labels": labels,
        "loss_mask": (labels >= 0).float(),
        "position_ids": torch.arange(length).expand(samples, -1).contiguous(),
        "attention_mask": None,
    }
    if workload.images:
        grids = _grids(workload) * samples
        patches = sum(frames * rows * columns for frames, rows, columns in grids)
        width = workload.channels * workload.temporal_patch_size * workload.patch_size**2
        batch["pixel_values"] = (patches, width, pixels_dtype)
        batch["image_grid_thw"] = torch.tensor(grids, dtype=torch.int64)
    return batch


class Microbatches(Iterator[dict[str, Any]]):
    """The same microbatch for ever, as fakes made anew each time."""

    def __init__(self, workload: Workload, ids: TokenIds, pixels_dtype: torch.dtype, fake: Any) -> None:
        with _disable_current_modes():  # values, not fakes
            self._batch = build(workload, ids, pixels_dtype)
        self._fake = fake

    def __next__(self) -> dict[str, Any]:
        batch = {
            name: self._fake(value) if isinstance(value, torch.Tensor) else value
            for name, value in self._batch.items()
        }
        if "pixel_values" in batch:
            patches, width, dtype = batch["pixel_values"]
            batch["pixel_values"] = torch.empty(patches, width, dtype=dtype)
        return batch
