"""What the model is fed: tokens that count, padding, image patches, and whether the images are real.

Only the arguments of the model's call are looked at, by name. Where an expected
argument is missing the counts stay zero and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from firstbad_probe.tally import Tally

#: Photographs have light and dark regions, white noise has none: the variance of
#: the patches' means is 1/n of the variance of the values, for n independent
#: values a patch (half of what is there: an image fills both frames of a patch).
#: Six over all values is three times that. Measured on 17 photographs of
#: scikit-image at 64 to 512 pixels: from 0.0049 (bricks at 64) to 0.93; on noise
#: of any size: 0.0009 to 0.0023, where the limit is 0.0039. Noise that was enlarged
#: before it was cut into patches passes (0.0075 at a factor of two).
NOISE_FACTOR = 6.0

#: Looking at pixels costs time: this many microbatches are enough to know the data.
_EXAMINED_MICROBATCHES = 4
#: Dimensions of [images, channels, height, width], and pixels of a patch's side that they are cut into.
_WHOLE_IMAGES = 4
_CUT = 16


#: Patches that are looked at on a GPU, evenly over all (or one whole image): a copy of all would show there.
_EXAMINED_ROWS = 128

#: Sums over the microbatches of one step on one rank.
COUNTS = (
    "loss_tokens",
    "image_tokens",
    "padding_tokens",
    "patches",
    "expert_tokens",  # rows that this rank's routed experts were given, all layers together
    "expert_calls",  # to so many experts, each counted once a layer and microbatch
    "most_expert_tokens",  # to the busiest of these
    "tokens",  # all that the model was fed, prompts and padding included
    "sequences",  # samples, packed ones one by one
)


@dataclass
class Batches:
    """Counts the batches of a run."""

    image_token_id: int | None = None
    padding_ids: frozenset[int] = frozenset({0})
    tally: Tally = field(default_factory=Tally)
    images: int = 0
    microbatches: int = 0
    with_images: int = 0
    faults: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    examines: bool = True  #: whether pixels are looked at; those of a dry run have no values
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
            if self.examines:
                self._examine(pixels)
        if not counted:
            return
        if isinstance(pixels, torch.Tensor) and pixels.dim() == _WHOLE_IMAGES:
            self.images += pixels.shape[0]
        if isinstance(mask, torch.Tensor):
            self.tally.add("loss_tokens", (mask > 0).sum())
        else:
            self.notes.add("could not see loss_mask in the model's arguments: loss tokens are not counted")
        if self.image_token_id is not None:
            self.tally.add("image_tokens", (tokens == self.image_token_id).sum())
        else:
            self.notes.add("the configuration names no image_token_id: image tokens are not counted")
        self.tally.add("padding_tokens", count_padding(tokens, self.padding_ids))
        self.tally.add("tokens", tokens.numel())
        self.tally.add("sequences", count_sequences(arguments, tokens))
        if isinstance(grids, torch.Tensor) and grids.numel():
            self.images += grids.shape[0]
            self.tally.add("patches", grids.prod(dim=-1).sum())

    def know_padding(self, iterable: Any) -> None:
        """Bridge pads with token 0; a processor has a padding token of its own."""
        identity = padding_id_of(iterable)
        if identity is not None:
            self.padding_ids |= {identity}

    def take_counts(self) -> Callable[[], dict[str, int]]:
        """The counts of the step; to be called when the step has passed on the device."""
        taken = self.tally.take()
        return lambda: {**dict.fromkeys(COUNTS, 0), **taken()}

    def _examine(self, pixels: torch.Tensor) -> None:
        if self._examined >= _EXAMINED_MICROBATCHES:
            return
        self._examined += 1
        if pixels.device.type != "cpu":
            most = _EXAMINED_ROWS if pixels.dim() == 2 else 1
            pixels = pixels[:: max(1, pixels.shape[0] // most)][:most]
        values = pixels.detach().float()
        if bool((values == values.flatten()[0]).all()):
            self.faults.add("the images are constant: every pixel has one value")
        elif values.dim() not in (2, _WHOLE_IMAGES) or min(values.shape[2:], default=_CUT) < _CUT:
            self.notes.add(
                "pixels are neither [patches, values] nor [images, channels, height, width]: "
                "not examined for noise"
            )
        elif is_noise(values if values.dim() == 2 else cut(values)):
            self.faults.add("the images are random noise: no part is lighter than another")

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


def count_sequences(arguments: Mapping[str, Any], tokens: torch.Tensor) -> int:
    """Rows; where samples are packed, as many as their boundaries say. tokens: [batch, sequence]."""
    packed = arguments.get("packed_seq_params")
    boundaries = getattr(packed, "cu_seqlens_q", None)
    if isinstance(boundaries, torch.Tensor) and boundaries.numel() > 1:
        return boundaries.numel() - 1
    return tokens.shape[0] if tokens.dim() > 1 else 1


def count_padding(tokens: torch.Tensor, padding_ids: frozenset[int]) -> torch.Tensor:
    """Trailing tokens of each row that are padding, as one number. tokens: [batch, sequence]."""
    padding = torch.zeros_like(tokens, dtype=torch.bool)
    for identity in padding_ids:
        padding |= tokens == identity
    return padding.flip(-1).cumprod(dim=-1, dtype=torch.int8).sum()


def padding_id_of(iterable: Any) -> int | None:
    """The padding token of the tokenizer behind a data iterator, if it shows: of its set's processor."""
    data_set = getattr(iterable, "_dataset", None) or getattr(iterable, "dataset", None)
    for name in ("_processor", "processor", "_tokenizer", "tokenizer"):
        processor = getattr(data_set, name, None)
        tokenizer = getattr(processor, "tokenizer", processor)
        identity = getattr(tokenizer, "pad_token_id", None)
        if isinstance(identity, int):
            return identity
    return None


def cut(images: torch.Tensor) -> torch.Tensor:
    """Whole images in squares. images: [images, channels, height, width]; result: [patches, values]."""
    squares = images.unfold(2, _CUT, _CUT).unfold(
        3, _CUT, _CUT
    )  # [images, channels, rows, columns, _CUT, _CUT]
    return squares.permute(0, 2, 3, 1, 4, 5).flatten(0, 2).flatten(1)


def is_noise(patches: torch.Tensor) -> bool:
    """Whether the patches' means differ no more than chance would have it. patches: [patches, values]."""
    share = patches.mean(dim=1).var(unbiased=False) / patches.var(unbiased=False)
    return float(share) < NOISE_FACTOR / patches.shape[1]


def _first(arguments: Mapping[str, Any], *names: str) -> Any:
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)
