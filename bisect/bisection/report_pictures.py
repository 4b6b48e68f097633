"""The parts of a report that become pictures: bytes, seconds, belief, and what was simulated.

Values taken from measurements; how they are drawn is `rendering`'s matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bisection.attribution import is_partial, is_truncated
from bisection.commits import CommitRange
from bisection.criteria import CriterionKind
from bisection.ledger import LedgerEntry
from bisection.measurement import Measurement
from bisection.report_parts import MemoryPicture, Posterior, Simulation, Suspicion, TimePicture
from bisection.specification import BisectionSpec

_SIMULATED_DEVICES = frozenset({"cpu", "dry_run"})
_HASH = re.compile(r"[0-9a-f]{40}")


def suspicions(commits: CommitRange, probabilities: Mapping[str, float]) -> Posterior:
    """Belief by commit, oldest first, and in the hypotheses that no commit is to blame."""
    return Posterior(
        commits=tuple(
            Suspicion(hash=commit.hash, probability=probabilities[commit.hash])
            for commit in commits.commits
            if commit.hash in probabilities
        ),
        others={name: share for name, share in probabilities.items() if not _HASH.fullmatch(name)},
    )


def memory_picture(
    spec: BisectionSpec, before: Measurement | None, after: Measurement | None
) -> MemoryPicture | None:
    """The two peaks side by side; None where neither was measured."""
    if not ((before and before.peak) or (after and after.peak)):
        return None
    capacity = spec.criterion.capacity_bytes
    if spec.criterion.kind is CriterionKind.PEAK_MEMORY and spec.criterion.threshold:
        capacity = int(spec.criterion.threshold)
    return MemoryPicture(
        parent=before.peak if before else None,
        culprit=after.peak if after else None,
        capacity_bytes=capacity,
        parent_steps=before.steps if before else (),
        culprit_steps=after.steps if after else (),
        truncated=any(is_truncated(m) for m in (before, after) if m),
        partial=any(is_partial(m) for m in (before, after) if m),
    )


def time_picture(
    spec: BisectionSpec, before: Measurement | None, after: Measurement | None
) -> TimePicture | None:
    """Seconds of a steady step side by side; None unless both sides have them."""
    if before is None or after is None or not (before.time.cells and after.time.cells):
        return None
    throughput = spec.criterion.kind is CriterionKind.THROUGHPUT
    return TimePicture(
        parent=before.time,
        culprit=after.time,
        parent_rate=before.useful_tokens_per_second,
        culprit_rate=after.useful_tokens_per_second,
        lowest_good_rate=spec.criterion.threshold if throughput else None,
    )


def simulation_of(ledger: Sequence[LedgerEntry]) -> Simulation | None:
    """What stood in for a GPU in any of the trials; None if they ran on GPUs."""
    devices = sorted({e.measurement.device for e in ledger} & _SIMULATED_DEVICES)
    if not devices:
        return None
    patches: dict[str, int] = {}
    for entry in ledger:
        for name, count in entry.measurement.patches.items():
            patches[name] = max(count, patches.get(name, 0))
    notes = []
    if "dry_run" in devices:
        notes.append(
            "Nothing was computed: a dry run takes the commit's own training loop through two steps, on "
            "tensors without data, in a world that is not there. Bytes are what these tensors would hold; "
            "the capacity is simulated."
        )
    if "cpu" in devices:
        notes.append(
            "Bytes are the live tensors of the training process, counted on this device; "
            "the capacity is simulated."
        )
        notes.append("Seconds are a CPU's: they do not say how fast a GPU is.")
    if patches:
        notes.append(
            "Stand-ins replaced code that needs a GPU; a GPU runs other kernels, which keep other tensors."
        )
    return Simulation(
        devices=tuple(devices), patches=patches, notes=tuple(notes), not_modelled=_not_modelled(ledger)
    )


def _not_modelled(ledger: Sequence[LedgerEntry]) -> tuple[str, ...]:
    dry = [entry.measurement for entry in ledger if entry.measurement.device == "dry_run"]
    return tuple(dict.fromkeys(told for measured in dry for told in measured.unseen))
