"""Changes of the configuration that lower the peak, each estimated anew, ranked by what a user would want.

A saving is what re-estimating the changed job says, never a rule of thumb. What can be
changed at all, and its cost, is in proposals.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memory_models.calibration import DEFAULT, Calibration
from memory_models.estimation import Estimate, estimate
from memory_models.job import TrainingJob
from memory_models.proposal import MARGIN, Proposal
from memory_models.proposals import proposals

#: A saving below this share of the whole is not worth naming.
LEAST_SAVING = 0.002
#: How many changes are joined at most where no single one suffices.
MOST_TOGETHER = 5


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change, what it saves and what it costs."""

    title: str
    change: Mapping[str, Any]  #: Bridge configuration key -> new value
    estimate_bytes: int  #: the worst rank's device bytes after the change
    saving_bytes: int  #: before minus after; negative where the change makes it worse
    slowdown: float  #: share of the step time, estimated
    cost: str  #: in words
    legal: bool
    why_not: str  #: the check that refuses it, where it is not legal
    fits: bool
    source: str  #: of slowdown and legality
    alters_training: bool = False  #: what is learned, or from what, is no longer the same

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "change": dict(self.change),
            "estimate_bytes": self.estimate_bytes,
            "saving_bytes": self.saving_bytes,
            "slowdown": round(self.slowdown, 4),
            "cost": self.cost,
            "legal": self.legal,
            "why_not": self.why_not,
            "fits": self.fits,
            "source": self.source,
            "alters_training": self.alters_training,
        }


def find_remedies(
    job: TrainingJob, capacity_bytes: int, calibration: Calibration = DEFAULT
) -> tuple[Remedy, ...]:
    """Every remedy that saves memory, best first: legal and fitting ones, by slowdown and size of change.

    ``capacity_bytes`` is the card's memory. Raises ValueError if the job itself cannot be laid out.
    """
    before = estimate(job, calibration)
    found = [
        _remedy(proposal, before, capacity_bytes, calibration)
        for proposal in proposals(job, capacity_bytes, calibration)
    ]
    if not any(remedy.fits and not remedy.alters_training for remedy in found):
        together = _together(job, before, capacity_bytes, calibration)
        if together is not None:
            found.append(together)
    least = round(LEAST_SAVING * before.worst.device_bytes)
    useful = [remedy for remedy in found if remedy.saving_bytes > least or not remedy.legal]
    return tuple(sorted(useful, key=_rank))


def _together(
    job: TrainingJob, before: Estimate, capacity_bytes: int, calibration: Calibration
) -> Remedy | None:
    """Several changes where no single one suffices: the best saving for its slowdown, again and again."""
    titles: list[str] = []
    change: dict[str, Any] = {}
    slowdown, current, answer = 0.0, job, before
    for _ in range(MOST_TOGETHER):
        candidates: list[tuple[float, Proposal, Estimate]] = []
        for proposal in proposals(current, capacity_bytes, calibration):
            if proposal.job is None or proposal.why_not or proposal.alters_training:
                continue
            try:
                after = estimate(proposal.job, calibration)
            except ValueError:  # a size that its ranks cannot share
                continue
            saving = answer.worst.device_bytes - after.worst.device_bytes
            if saving > LEAST_SAVING * answer.worst.device_bytes:
                candidates.append((saving / (0.05 + max(0.0, proposal.slowdown)), proposal, after))
        if not candidates:
            return None
        _, best, answer = max(candidates, key=lambda candidate: candidate[0])
        assert best.job is not None
        current = best.job
        titles.append(best.title)
        change |= best.change
        slowdown += best.slowdown
        if answer.worst.device_bytes <= capacity_bytes * (1 - MARGIN):
            break
    if len(titles) < 2:
        return None
    size = answer.worst.device_bytes
    return Remedy(
        title="; ".join([titles[0], *(title[0].lower() + title[1:] for title in titles[1:])]),
        change=change,
        estimate_bytes=size,
        saving_bytes=before.worst.device_bytes - size,
        slowdown=slowdown,
        cost="the sum of what each costs alone",
        legal=True,
        why_not="",
        fits=size <= capacity_bytes * (1 - MARGIN),
        source="each of them re-estimated on top of the others",
    )


def _remedy(proposal: Proposal, before: Estimate, capacity_bytes: int, calibration: Calibration) -> Remedy:
    why_not, after = proposal.why_not, before.worst.device_bytes
    if proposal.job is None:
        why_not = why_not or "the changed job cannot be laid out"
    elif not why_not:
        try:
            after = estimate(proposal.job, calibration).worst.device_bytes
        except ValueError as error:  # a size that its ranks cannot share
            why_not = str(error)
    return Remedy(
        title=proposal.title,
        change=proposal.change,
        estimate_bytes=after,
        saving_bytes=before.worst.device_bytes - after,
        slowdown=proposal.slowdown,
        cost=proposal.cost,
        legal=not why_not,
        why_not=why_not,
        fits=not why_not and after <= capacity_bytes * (1 - MARGIN),
        source=proposal.source,
        alters_training=proposal.alters_training,
    )


def _rank(remedy: Remedy) -> tuple[bool, bool, bool, float, int, int]:
    """Legal and fitting first, what leaves training as it is before what alters it.

    Of those that fit, the least slowdown and the smallest change; of the others, the largest saving.
    """
    if not remedy.fits:
        return (not remedy.legal, True, remedy.alters_training, 0.0, 0, -remedy.saving_bytes)
    changes = len(remedy.change)
    return (not remedy.legal, False, remedy.alters_training, remedy.slowdown, changes, -remedy.saving_bytes)
