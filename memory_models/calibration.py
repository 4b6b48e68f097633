"""Every fitted constant of the memory model, with what it was fitted over. Nothing else.

None of them enters VISION, PROJECTOR or EXPERTS. The benchmark memory_accuracy refits them on
any set of records; the defaults here are what that fit gives on all development records.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Calibration:
    #: What an empty model allocates beyond the workspaces of runtime.py: rotary tables, tensors of
    #: the data loader, RNG states, masks. The median residual of the dense records.
    remainder_bytes: int = 4 * 2**20
    #: Fragmentation as a share of allocated bytes, by allocator setting (literature: 2-6 % with
    #: expandable segments, 6-20 % without). Not fitted: no record has reserved bytes.
    fragmentation_expandable: float = 0.04
    fragmentation_default: float = 0.10
    #: CUDA context, loaded modules and NCCL communicators (literature 0.4-0.8 GiB and 0.5-0.7 GB
    #: a communicator). Not fitted: outside the allocator.
    context_bytes: int = 600 * 2**20
    communicator_bytes: int = 550 * 2**20
    #: Half-width of the 90 % band as a share of the estimate, fitted as the 90 % quantile of the
    #: residuals of the development records.
    band: float = 0.08


DEFAULT = Calibration()
