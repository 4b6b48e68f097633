"""The pictures of a search that still runs: the same as its report will have, of what is known so far."""

from __future__ import annotations

from collections.abc import Sequence

from bisection.ledger import LedgerEntry
from bisection.rendering.belief_pictures import belief_map
from bisection.rendering.svg import NARROW, WIDE
from bisection.rendering.trial_pictures import posterior_bars
from bisection.report import CulpritReport, Evidence, build_report
from bisection.search import Search
from bisection.specification import BisectionSpec


def progress_pictures(spec: BisectionSpec, ledger: Sequence[LedgerEntry]) -> tuple[tuple[str, str], ...]:
    """SVG for a desktop and for a phone: trials over the range of each level, then the last belief.

    Empty before the first trial is done. The search is replayed once a level: for a long line that takes
    seconds, so keep the answer until the ledger grows.
    """
    if not ledger:
        return ()
    search = Search.replay(spec, ledger)
    report = build_report(spec, ledger, search.answer_now("", ""), Evidence(posterior=search.probabilities()))
    drawn = [_both(report, level) for level in range(len(report.history))]
    drawn.append(
        (posterior_bars(report, suffix="-wide"), posterior_bars(report, width=NARROW, suffix="-narrow"))
    )
    return tuple(pair for pair in drawn if pair[0])


def _both(report: CulpritReport, level: int) -> tuple[str, str]:
    history = report.history[level]
    return (
        belief_map(report, history, width=WIDE, suffix="-wide"),
        belief_map(report, history, width=NARROW, suffix="-narrow"),
    )
