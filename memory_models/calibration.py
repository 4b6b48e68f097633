"""Every fitted constant of the memory model, with what it was fitted over. Nothing else.

None of them enters VISION, PROJECTOR or EXPERTS. The benchmark memory_accuracy refits those
marked as fitted on any set of measured runs; the defaults are what that fit gives on 856
runs of Megatron-LM's own tests (A100, H100 and GB200; the allocator's peak of the last rank).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Band:
    """Where nine of ten measured peaks lie, as shares of the estimate."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The constants of one fit, and those that were not fitted."""

    #: Fitted: what an empty model allocates beyond the workspaces of runtime.py (rotary tables,
    #: tensors of the data loader, RNG states, masks). The median residual of dense runs.
    remainder_bytes: int = 9_576_448
    #: Fitted: the band of dense models, of models with experts (whose router is the unknown), and
    #: of what is rarely measured (fp8, FSDP, offload, CUDA graphs, hybrids). The 3 % and 97 % quantiles.
    dense: Band = field(default_factory=lambda: Band(low=0.993, high=1.067))
    experts: Band = field(default_factory=lambda: Band(low=0.960, high=1.080))
    rare: Band = field(default_factory=lambda: Band(low=0.824, high=1.313))
    #: Not fitted, from the literature, C: fragmentation as a share of allocated bytes is 2-6 % with
    #: expandable segments and 6-20 % without.
    fragmentation_expandable: float = 0.04
    fragmentation_default: float = 0.10
    #: Not fitted, from the literature, C: CUDA context and modules 0.4-0.8 GiB, and 0.5-0.7 GB for
    #: each NCCL communicator.
    context_bytes: int = 600 * 2**20
    communicator_bytes: int = 550 * 2**20


DEFAULT = Calibration()
