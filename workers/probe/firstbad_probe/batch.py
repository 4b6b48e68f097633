"""What the model is fed: tokens that count, padding, image patches, and whether the images are real.

Only the arguments of the model's call are looked at, by name. Where an expected
argument is missing the counts stay zero and a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

#: Neighbouring pixels of photographs are nearly equal (correlation above 0.8 in
#: the photographs of scikit-image, resized as here); those of white noise are not
#: (below 0.05, and still below 0.4 when noise was resized by a factor of two).
NOISE_CORRELATION = 0.5

#: Looking at pixels costs time: this many microbatches are enough to know the data.
_EXAMINED_MICROBATCHES = 4


@dataclass
class Counts:
    """Sums over the microbatches of one step on one rank."""

    loss_tokens: int = 0
    image_tokens: int = 0
    padding_tokens: int = 0
    patches: int = 0


@dataclass
class Batches:
    """Counts the batches of a run."""

    image_token_id: int | None = None
    padding_ids: frozenset[int] = frozenset({0})
    counts: Counts = field(default_factory=Counts)
    images: int = 0
    microbatches: int = 0
    with_images: int = 0
    faults: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    _examined: int = 0

    def see(self, arguments: Mapping[str, Any], *, counted: bool) -> None:
        """One microbatch. `counted` is false on ranks that see what another rank counts already."""
        tokens, mask = arguments.get("input_ids"), arguments.get("loss_mask")
        grids = _first(arguments, "image_grid_thw", "image_grid_hws", "grid_thw")
        pixels = _first(arguments, "pixel_values", "images")
        self.microbatches += 1
        if not isinstance(tokens, torch.Tensor):
            self.notes.add("could not see input_ids in the model's arguments: tokens are not counted")
            return
        if isinstance(pixels, torch.Tensor) and pixels.numel():
            self.with_images += 1
            self._examine(pixels)
        if not counted:
            return
        if isinstance(mask, torch.Tensor):
            self.counts.loss_tokens += int((mask > 0).sum())
        else:
            self.notes.add("could not see loss_mask in the model's arguments: loss tokens are not counted")
        if self.image_token_id is not None:
            self.counts.image_tokens += int((tokens == self.image_token_id).sum())
        else:
            self.notes.add("the configuration names no image_token_id: image tokens are not counted")
        self.counts.padding_tokens += count_padding(tokens, self.padding_ids)
        if isinstance(grids, torch.Tensor) and grids.numel():
            self.images += grids.shape[0]
            self.counts.patches += int(grids.prod(dim=-1).sum())

    def take_counts(self) -> Counts:
        counts, self.counts = self.counts, Counts()
        return counts

    def _examine(self, pixels: torch.Tensor) -> None:
        if self._examined >= _EXAMINED_MICROBATCHES:
            return
        self._examined += 1
        values = pixels.detach().float().flatten()
        if bool((values == values[0]).all()):
            self.faults.add("the images are constant: every pixel has one value")
        elif neighbour_correlation(values) < NOISE_CORRELATION:
            self.faults.add("the images are random noise: neighbouring pixels do not resemble each other")

    @property
    def real(self) -> bool:
        return self.with_images > 0 and not self.faults

    def reasons(self) -> list[str]:
        """Why the data is not real vision-language data; empty if it is."""
        reasons = sorted(self.faults)
        if self.microbatches and not self.with_images:
            reasons.append("no batch held an image")
        if not self.microbatches:
            reasons.append("no batch was seen")
        return reasons


def count_padding(tokens: torch.Tensor, padding_ids: frozenset[int]) -> int:
    """Trailing tokens of each row that are padding. tokens: [batch, sequence]."""
    padding = torch.zeros_like(tokens, dtype=torch.bool)
    for identity in padding_ids:
        padding |= tokens == identity
    return int(padding.flip(-1).cumprod(dim=-1).sum())


def neighbour_correlation(values: torch.Tensor) -> float:
    """Correlation of each value with the next one in memory: pixels of one image row. values: [n]."""
    first, second = values[:-1] - values[:-1].mean(), values[1:] - values[1:].mean()
    scale = first.norm() * second.norm()
    return float((first * second).sum() / scale) if float(scale) > 0 else 1.0


def _first(arguments: Mapping[str, Any], *names: str) -> Any:
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)
