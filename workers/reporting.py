"""The last step of a bisection: from finding and ledger to the stored report."""

from __future__ import annotations

from dataclasses import replace

from bisection.adapters.storage.bisections import BisectionRow
from bisection.adapters.storage.trials import Trials
from bisection.ancestry import Ancestor
from bisection.finding import Finding
from bisection.report import CulpritReport, Evidence, build_report, rejected_report
from bisection.report_parts import Retraction
from bisection.specification import end_words
from workers.context import WorkerContext
from workers.evidence import gather_evidence


def make_report(context: WorkerContext, row: BisectionRow) -> CulpritReport:
    """Pure but for the evidence; the same rows give the same report."""
    assert row.finding is not None  # reporting starts with a finding
    finding = Finding.from_json(row.finding)
    spec = row.specification
    if spec is None:
        profile = row.profile
        return rejected_report(
            finding,
            Evidence(
                bisection=row.id,
                repository=profile.get("repository", ""),
                profile=profile.get("name", ""),
                good=end_words(row.request.get("good", "")),
                bad=end_words(row.request.get("bad", "")),
                started_at=row.created_at,
                finished_at=row.updated_at,
                notes=tuple(_origin(row)),
            ),
        )
    ledger = Trials.ledger(context.trials.of(row.id))
    evidence = gather_evidence(context, row, spec, finding)
    report = build_report(spec, ledger, finding, replace(evidence, notes=(*_origin(row), *evidence.notes)))
    # A report that is made anew, for proofs of its remedies, stays retracted.
    return replace(report, retraction=Retraction(**row.retraction)) if row.retraction else report


def _origin(row: BisectionRow) -> list[str]:
    """What it was made of, and who allowed or refused its GPU hours."""
    notes = []
    ancestor = Ancestor.of(row.request)
    if ancestor is not None:
        notes.append(ancestor.words)
    if row.approval is not None:
        decision, by, at, reason = (row.approval[name] for name in ("decision", "by", "at", "reason"))
        day = at[:16].replace("T", " ")
        notes.append(
            f"Its GPU hours were {decision} by {by} on {day} UTC" + (f": {reason}" if reason else ".")
        )
    return notes
