"""One trial of a report in words, alike in all formats. Plain text, not yet escaped for any of them."""

from __future__ import annotations

from dataclasses import dataclass

from bisection.ledger import Purpose
from bisection.quantities import counted, show_bytes
from bisection.rendering.escaping import visible
from bisection.rendering.wording import VERDICT_SIGNS, duration, is_of_speed, sentence, step_words
from bisection.report import CulpritReport
from bisection.report_parts import TrialRow

PURPOSE_WORDS = {
    Purpose.END: "end of the range",
    Purpose.SEARCH: "search",
    Purpose.CONFIRM: "confirmation",
    Purpose.REVERT: "bad end without the culprit",
    Purpose.PROOF: "proof of a remedy",
    Purpose.POINT: "point of a sweep",
}


@dataclass(frozen=True, kw_only=True)
class TrialWords:
    """One trial in words. ``commit``, ``reason``, ``why`` and ``changed`` hold what strangers wrote."""

    number: str
    commit: str
    place: str
    verdict: str
    sign: str
    outcome: str
    reason: str
    value: str
    purpose: str
    why: str
    changed: str
    where: str
    details: str


def trial_words(report: CulpritReport, row: TrialRow) -> TrialWords:
    commit = report.commits[row.position] if row.position is not None else None
    overrides = ", ".join(f"{name}={value[:10]}" for name, value in (*row.state.pins, *row.state.packages))
    if row.useful_tokens_per_second is not None and is_of_speed(report):
        value = f"{row.useful_tokens_per_second:,.1f} tokens/s"
    else:
        value = show_bytes(row.peak_bytes) if row.peak_bytes is not None else "–"
    details = [f"attempt {row.attempt}", duration(row.seconds)]
    if row.taken_from:
        details.append(f"taken over from {row.taken_from.replace('/', ', trial ')}")
    if row.control_tokens_per_second is not None:
        details.append(f"control {row.control_tokens_per_second:,.1f} tokens/s")
    if row.images:
        kind = "simulated" if row.real_data is None else "real" if row.real_data else "mock"
        details.append(counted(row.images, f"{kind} image"))
    if row.capacity_bytes:
        details.append(f"limit {show_bytes(row.capacity_bytes)} enforced")
    elif row.device != "host":  # where nothing measures memory, none is limited
        details.append("no limit enforced")
    return TrialWords(
        number=str(row.sequence + 1),
        commit=(step_words(report, commit) if commit else _state_words(report, row))
        + (f" with {overrides}" if overrides else ""),
        place=str(row.position) if row.position is not None else "–",
        verdict=str(row.verdict),
        sign=VERDICT_SIGNS[row.verdict],
        outcome=row.outcome.value.replace("_", " "),
        reason=sentence(visible(row.reason, limit=300)),
        value=value,
        purpose=PURPOSE_WORDS[row.purpose],
        why=row.why,
        changed=row.changed,
        where=" on ".join(part for part in (row.worker, row.hardware or row.device) if part),
        details=", ".join(details),
    )


def _state_words(report: CulpritReport, row: TrialRow) -> str:
    """What to call a state that is no step of the range."""
    if row.purpose is Purpose.REVERT and report.culprit and report.subject:
        return f"{report.subject.bad[:10]} without {report.culprit.short}"
    return row.state.commit[:10]
