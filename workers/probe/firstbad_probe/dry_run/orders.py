"""What a dry run is asked: the world, the images, the routing and whose layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNFUSED, PRODUCTION = "unfused", "production"
_FIELDS = frozenset(
    {"images", "sequence_length", "skew", "expert_shares", "layers", "all_stages", "parallel"}
)


@dataclass(frozen=True)
class Orders:
    """Images are [height, width] in pixels, those of one sample."""

    world_size: int
    images: tuple[tuple[int, int], ...] = ()
    sequence_length: int | None = None  #: None: the configuration's
    skew: float = 0.0
    expert_shares: tuple[float, ...] = ()
    layers: str = UNFUSED
    all_stages: bool = True  #: one rank of every pipeline stage; else the rank of the environment alone
    parallel: int = 1  #: stages that run at once

    def told(self) -> str:
        """In one line, for whoever reads the record."""
        images = ", ".join(f"{height} x {width}" for height, width in self.images) or "none"
        routing = "all alike"
        if self.expert_shares:
            routing = "by recorded shares"
        elif self.skew:
            routing = f"by a Zipf distribution with exponent {self.skew:g}"
        return (
            f"a dry run: {self.layers} layers, a world of {self.world_size}, images of a sample: {images} "
            f"pixels, experts chosen {routing}"
        )


def read_orders(environment: Mapping[str, str], world_size: int) -> Orders:
    """Raises ValueError, naming the field, for an order that cannot be followed."""
    text = environment.get("FIRSTBAD_DRY_RUN", "")
    try:
        row = json.loads(text) if text else {}
    except ValueError as error:
        raise ValueError(f"FIRSTBAD_DRY_RUN is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise ValueError("FIRSTBAD_DRY_RUN must be a JSON object")
    strange = set(row) - _FIELDS
    if strange:
        raise ValueError(f"FIRSTBAD_DRY_RUN has unknown fields: {', '.join(sorted(strange))}")
    layers = row.get("layers", UNFUSED)
    if layers not in (UNFUSED, PRODUCTION):
        raise ValueError(f"FIRSTBAD_DRY_RUN: layers is {layers!r}: it must be {UNFUSED} or {PRODUCTION}")
    return Orders(
        world_size=world_size,
        images=tuple(_image(image) for image in row.get("images", ())),
        sequence_length=row.get("sequence_length"),
        skew=float(row.get("skew", 0.0)),
        expert_shares=tuple(float(share) for share in row.get("expert_shares", ())),
        layers=layers,
        all_stages=bool(row.get("all_stages", True)),
        parallel=max(1, int(row.get("parallel", 1))),
    )


def _image(image: Any) -> tuple[int, int]:
    if (
        not isinstance(image, (list, tuple))
        or len(image) != 2
        or not all(isinstance(side, int) and side > 0 for side in image)
    ):
        raise ValueError(f"FIRSTBAD_DRY_RUN: {image!r} is no image: give [height, width] in pixels")
    return image[0], image[1]
