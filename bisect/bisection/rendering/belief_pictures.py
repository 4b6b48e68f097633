"""The picture of a search on its way: a row a trial, the range from left to right, belief as shade.

One picture a level. Draws what a report holds; judges nothing.
"""

from __future__ import annotations

import re

from bisection.criteria import Verdict
from bisection.quantities import counted
from bisection.rendering.belief_scale import SHADES, shade, spans
from bisection.rendering.escaping import visible
from bisection.rendering.svg import WIDE, Canvas, text_width
from bisection.rendering.wording import stamp
from bisection.report import CulpritReport
from bisection.report_parts import BeliefHistory, BeliefRow, TrialRow

_HASH = re.compile(r"[0-9a-f]{7,40}")
_LEFT = 34.0
#: Width of the column for "nothing is to blame", and the room left of it.
_NOBODY, _GAP = 22.0, 8.0
#: Rows shrink so that sixty trials still fit on one screen.
_TALLEST_ROW, _TALLEST_CHART = 22.0, 620.0


def timeline(report: CulpritReport, *, width: int = WIDE, suffix: str = "") -> str:
    """Of the range that was asked about; "" if nothing was tried."""
    return belief_map(report, report.history[0], width=width, suffix=suffix) if report.history else ""


def belief_map(report: CulpritReport, history: BeliefHistory, *, width: int = WIDE, suffix: str = "") -> str:
    """Steps from left to right, trials from top to bottom; "" if nothing was tried on this level.

    The shade of a row is the belief after its trial; above the first trial stands what was believed before.
    """
    trials = {row.sequence: row for row in report.trials}
    rows = [(row, trials[row.sequence]) for row in history.rows if row.sequence in trials]
    if not rows or history.steps < 2:
        return ""
    title = "Trials over the range" if history.level == 0 else f"Inside {visible(history.title, limit=60)}"
    canvas = Canvas(
        f"timeline{history.level or ''}{suffix}",
        title,
        _description(report, history, rows),
        width=width,
        stamp=stamp(report),
    )
    height = min(_TALLEST_ROW, _TALLEST_CHART / (len(rows) + 1))
    top = canvas.top + 22
    bottom = top + height * (len(rows) + 1)
    _axis(canvas, history, top, bottom)
    if not report.nothing_known:  # until something fails, a belief is no evidence against anyone
        for index, (row, after) in enumerate(
            [
                (history.start, "before the first trial"),
                *((row, f"after trial {t.sequence + 1}") for row, t in rows),
            ]
        ):
            _shades(canvas, history, row, top + height * index, height, after)
    points = []
    for index, (row, trial) in enumerate(rows, start=1):
        x, y = _middle(canvas, history, row.position or 0), top + height * (index + 0.5)
        if len(rows) <= 30 or index % 5 == 1:
            canvas.text(_LEFT - 14, y + 4, f"{trial.sequence + 1}", "fb-small fb-muted fb-end")
        points.append((x, y))
    canvas.path(points, "fb-path")
    for (x, y), (row, trial) in zip(points, rows, strict=True):
        what = trial.changed or trial.reason
        tip = f"trial {trial.sequence + 1}, step {row.position}: {trial.verdict}. {what}"
        _mark(canvas, x, y, min(6.0, height * 0.38), trial.verdict, tip)
    return canvas.finish(_legend(canvas, bottom + 24, shaded=not report.nothing_known) + 8)


def _description(
    report: CulpritReport, history: BeliefHistory, rows: list[tuple[BeliefRow, TrialRow]]
) -> str:
    said = []
    for row, trial in rows:
        left = "" if report.nothing_known else f", {counted(row.suspects, 'suspect')} left"
        said.append(f"trial {trial.sequence + 1} of step {row.position}: {trial.verdict}{left}")
    return f"Step 0 is the good end, step {history.steps - 1} the bad end. {'; '.join(said)}."


def _shades(
    canvas: Canvas, history: BeliefHistory, row: BeliefRow, y: float, height: float, after: str
) -> None:
    for span in spans(history, row):
        where = f"step {span.first}" if span.first == span.last else f"steps {span.first} to {span.last}"
        first, last = _edge(canvas, history, span.first), _edge(canvas, history, span.last + 1)
        tip = f"{after}: {span.thousandths / 10:.1f} % in {where}"
        canvas.rect(first, y + 1, last - first, height - 2, f"fb-shade{span.shade}", tip=tip)
    depth = shade(row.no_culprit)
    if depth:
        tip = f"{after}: {row.no_culprit / 10:.1f} % that nothing in the range is to blame"
        x = canvas.width - _NOBODY
        canvas.rect(x, y + 1, _NOBODY, height - 2, f"fb-shade{depth}", tip=tip)


def _room(canvas: Canvas) -> float:
    return canvas.width - _LEFT - _NOBODY - _GAP


def _edge(canvas: Canvas, history: BeliefHistory, position: int) -> float:
    """Where the cell of a step begins."""
    return _LEFT + _room(canvas) * position / history.steps


def _middle(canvas: Canvas, history: BeliefHistory, position: int) -> float:
    return _edge(canvas, history, position) + _room(canvas) / history.steps / 2


def _axis(canvas: Canvas, history: BeliefHistory, top: float, bottom: float) -> None:
    wide = max(6.0, min(18.0, _room(canvas) / history.steps))
    middle = [_middle(canvas, history, position) for position in history.named]
    for x in middle:
        canvas.rect(x - wide / 2, top - 2, wide, bottom - top + 4, "fb-culprit", round_by=3)
    if history.steps <= 80:
        for position in range(history.steps):
            x = _middle(canvas, history, position)
            canvas.line(x, bottom + 2, x, bottom + 6)
    right = canvas.width - _NOBODY - _GAP
    canvas.line(_LEFT, bottom + 2, right, bottom + 2)
    good, bad = (f"{end} {_label(name)}" for end, name in (("good", history.first), ("bad", history.last)))
    canvas.text(_LEFT - 6, top - 8, good, "fb-small fb-muted")
    canvas.text(right, top - 8, bad, "fb-small fb-muted fb-end")
    canvas.text(canvas.width, bottom + 16, "none", "fb-small fb-muted fb-end")
    if middle:
        words = "answer" if len(middle) == 1 else f"{len(middle)} steps"
        edge = text_width("good 1234567", 11) + 12
        x, half = sum(middle) / len(middle), text_width(words) / 2
        if edge + half < x < right - edge - half:
            canvas.text(x, top - 8, words, "fb-small fb-limit-text fb-middle")


def _label(name: str) -> str:
    """The start of a hash, or of what a step of our own making is called."""
    return name[:7] if _HASH.fullmatch(name) else visible(name, limit=16)


def _mark(canvas: Canvas, x: float, y: float, size: float, verdict: Verdict, tip: str = "") -> None:
    """A disc for good, a square for bad, an open triangle for skip, a cross for again."""
    if verdict is Verdict.GOOD:
        half = f"a{size:g} {size:g} 0 1 0"
        data = f"M{x - size:.1f} {y:.1f} {half} {2 * size:g} 0 {half} {-2 * size:g} 0 Z"
        canvas.shape(data, "fb-good", tip=tip)
    elif verdict is Verdict.BAD:
        canvas.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8, "fb-bad", tip=tip)
    elif verdict is Verdict.SKIP:
        data = f"M{x - size:.1f} {y - size * 0.8:.1f} h{2 * size:g} l{-size:g} {size * 1.7:g} Z"
        canvas.shape(data, "fb-skip", tip=tip)
    else:
        cross = size * 0.75
        data = (
            f"M{x - cross:.1f} {y - cross:.1f} l{2 * cross:g} {2 * cross:g} "
            f"M{x + cross:.1f} {y - cross:.1f} l{-2 * cross:g} {2 * cross:g}"
        )
        canvas.shape(data, "fb-retry", tip=tip)


def _legend(canvas: Canvas, y: float, *, shaded: bool) -> float:
    x = _LEFT
    samples = (
        (Verdict.GOOD, "good"),
        (Verdict.BAD, "bad"),
        (Verdict.SKIP, "cannot be judged"),
        (Verdict.RETRY, "lost, run again"),
    )
    for verdict, words in samples:
        wide = 16 + text_width(words) + 14
        if x + wide - 14 > canvas.width:
            x, y = _LEFT, y + 19
        _mark(canvas, x + 5, y - 4, 5.0, verdict)
        canvas.text(x + 16, y, words)
        x += wide
    if not shaded:
        return y
    x, y = _LEFT, y + 19
    for depth in range(1, len(SHADES) + 1):
        canvas.rect(x + 14 * (depth - 1), y - 10, 14, 12, f"fb-shade{depth}")
    words = f"belief: {SHADES[0] / 10:g} % to over {SHADES[-1] / 10:g} %"
    canvas.text(x + 14 * len(SHADES) + 8, y, words)
    return y
