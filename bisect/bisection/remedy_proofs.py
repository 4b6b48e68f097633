"""Remedies proven: what trials of the culprit under a remedy's changes say of it.

Apart from the search, like the revert test: a proof adds to a report and never takes from the answer. Which
trials are still wanted, and what they come to, are derived from the ledger; running them is the workers'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bisection.criteria import Criterion, Verdict, judge
from bisection.ledger import LedgerEntry, Purpose
from bisection.measurement import Measurement, Outcome
from bisection.quantities import show_bytes
from bisection.report_parts import RemedyRow

#: Lost trials of one remedy after which it is given up.
MOST_LOST = 2


def wanted_proofs(
    remedies: Sequence[RemedyRow], count: int, ledger: Sequence[LedgerEntry]
) -> tuple[RemedyRow, ...]:
    """Those of the best ``count`` legal remedies that no trial has decided yet."""
    top = [remedy for remedy in remedies if remedy.legal][:count]
    return tuple(remedy for remedy in top if not _is_decided(_proofs(remedy, ledger)))


def with_proofs(
    remedies: Sequence[RemedyRow],
    ledger: Sequence[LedgerEntry],
    criterion: Criterion,
    unchanged: Measurement | None,
) -> tuple[RemedyRow, ...]:
    """The remedies with what their proving trials measured; ``unchanged`` is the culprit's measurement."""
    return tuple(_proven(remedy, _proofs(remedy, ledger), criterion, unchanged) for remedy in remedies)


def _proofs(remedy: RemedyRow, ledger: Sequence[LedgerEntry]) -> list[Measurement]:
    return [
        entry.measurement
        for entry in ledger
        if entry.trial.purpose is Purpose.PROOF and dict(entry.trial.overrides) == dict(remedy.change)
    ]


def _is_decided(proofs: Sequence[Measurement]) -> bool:
    lost = sum(one.outcome is Outcome.LOST for one in proofs)
    return lost < len(proofs) or lost >= MOST_LOST


def _proven(
    remedy: RemedyRow, proofs: Sequence[Measurement], criterion: Criterion, unchanged: Measurement | None
) -> RemedyRow:
    if not proofs:
        return remedy
    measured = next((one for one in reversed(proofs) if one.outcome is not Outcome.LOST), proofs[-1])
    judgement = judge(criterion, measured)
    if judgement.verdict is Verdict.RETRY:
        return replace(remedy, proof=f"its trials were lost ({judgement.why})")
    if judgement.verdict is Verdict.SKIP:
        return replace(remedy, proof=f"with it the job could not be judged: {judgement.why}")
    whole = measured.outcome is Outcome.COMPLETED and measured.peak is not None
    peak = measured.peak.allocated_bytes if whole and measured.peak else None
    least = peak if peak is not None else (int(judgement.value) if judgement.value else None)
    off = remedy.estimate.peak_bytes - peak if peak is not None else None
    rate = measured.useful_tokens_per_second if whole else None
    good = judgement.verdict is Verdict.GOOD
    parts = [judgement.why if good else f"it still ran out of memory: {judgement.why}"]
    if off is not None:
        parts.append(_off(off, peak or 0))
    elif least is not None and least > remedy.estimate.peak_bytes:
        parts.append(f"the estimate was at least {show_bytes(least - remedy.estimate.peak_bytes)} too low")
    parts += _speed(rate, unchanged)
    return replace(
        remedy,
        proven=good,
        proof="; ".join(parts),
        measured_peak_bytes=least,
        measured_rate=rate,
        estimate_off_bytes=off,
    )


def _off(off_bytes: int, peak_bytes: int) -> str:
    """How far the estimate was from what was measured."""
    if off_bytes == 0:
        return "the estimate was right to the byte"
    share = abs(off_bytes) / max(1, peak_bytes)
    side = "high" if off_bytes > 0 else "low"
    return f"the estimate was {show_bytes(abs(off_bytes))} ({100 * share:.1f} %) too {side}"


def _speed(rate: float | None, unchanged: Measurement | None) -> list[str]:
    if rate is None:
        return []
    before = unchanged.useful_tokens_per_second if unchanged is not None else None
    whole = unchanged is not None and unchanged.outcome is Outcome.COMPLETED
    against = f" against {before:,.1f} without it" if before and whole else ""
    return [f"{rate:,.1f} useful tokens a second{against}"]
