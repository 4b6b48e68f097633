"""The section `dry_run` of a profile: the world and the work that a trial without a device pretends to have.

A dry run is one process on one host, whatever the size of the world: the probe runs the commit's own
training loop in it on tensors without data. What it is asked travels as `orders`; how it is started
is the workers' matter.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from bisection.adapters.catalogue_fields import Shape

#: The first step makes the optimizer's states, the second shows their weight; more would repeat it.
DRY_STEPS = 2
#: Of an image, in pixels.
Side = Annotated[int, Field(ge=1, le=2**16, strict=True)]
Share = Annotated[float, Field(ge=0)]


class DryRun(Shape):
    """One rank of every pipeline stage is rehearsed; the others are taken to be like it."""

    world_size: Annotated[int, Field(ge=1, le=100_000)]  #: that of the real job, all parallel sizes together
    images: tuple[tuple[Side, Side], ...] = ()  #: [height, width] in pixels, those of one sample
    #: Whose layers: ``unfused`` are Megatron Core's own, as they are; ``production`` keeps the job's fused
    #: ones, on stand-ins that save what they save.
    layers: Literal["unfused", "production"] = "unfused"
    skew: Annotated[float, Field(ge=0)] = (
        0.0  #: exponent of a Zipf distribution over the experts; 0: all alike
    )
    expert_shares: tuple[Share, ...] = ()  #: of a recorded run, one for each expert; they win over the skew
    sequence_length: Annotated[int, Field(ge=1)] | None = None  #: none: the configuration's
    parallel: Annotated[int, Field(ge=1, le=64)] = 1  #: pipeline stages that run at once

    @property
    def orders(self) -> str:
        """What the probe is told, as JSON; the world's size it has from the environment."""
        row: dict[str, Any] = self.model_dump(mode="json", exclude={"world_size"}, exclude_none=True)
        return json.dumps(row, sort_keys=True)
