"""Pictures of the search: the trials over the range, and how much each commit is suspected.

Draws what a report holds; judges nothing.
"""

from __future__ import annotations

from bisection.criteria import Verdict
from bisection.quantities import show_confidence
from bisection.rendering.escaping import visible
from bisection.rendering.svg import WIDE, Canvas, text_width
from bisection.rendering.wording import OTHER_ANSWERS, commit_words, stamp
from bisection.report import CulpritReport
from bisection.report_parts import TrialRow

_LEFT, _RIGHT = 34.0, 12.0
#: Rows shrink so that sixty trials still fit on one screen.
_TALLEST_ROW, _TALLEST_CHART = 22.0, 620.0


def timeline(report: CulpritReport, *, width: int = WIDE, suffix: str = "") -> str:
    """Commits from left to right, trials from top to bottom; "" if nothing was tried.

    The grey band of a row is what was still suspected after its trial.
    """
    rows = [row for row in report.trials if row.position is not None]
    count = len(report.commits)
    if not rows or count < 2:
        return ""
    said = "; ".join(f"trial {row.sequence + 1} of commit {row.position}: {row.verdict}" for row in rows)
    canvas = Canvas(
        f"timeline{suffix}",
        "Trials over the range",
        f"Commit 0 is the good end, commit {count - 1} the bad end. {said}.",
        width=width,
        stamp=stamp(report),
    )
    height = min(_TALLEST_ROW, _TALLEST_CHART / len(rows))
    top = canvas.top + 22
    bottom = top + height * len(rows)
    _range_axis(canvas, report, top, bottom)
    points = []
    suspected = (-1, count)
    for index, row in enumerate(rows):
        assert row.position is not None  # kept above
        x, y = _place(canvas, count, row.position), top + height * (index + 0.5)
        suspected = _narrowed(suspected, row)
        first, last = (
            _place(canvas, count, max(suspected[0], 0)),
            _place(canvas, count, min(suspected[1], count - 1)),
        )
        if last > first:
            canvas.rect(first, y - height * 0.32, last - first, height * 0.64, "fb-band", round_by=3)
        if len(rows) <= 30 or index % 5 == 0:
            canvas.text(_LEFT - 14, y + 4, f"{row.sequence + 1}", "fb-small fb-muted fb-end")
        points.append((x, y))
    canvas.path(points, "fb-path")
    for (x, y), row in zip(points, rows, strict=True):
        tip = f"trial {row.sequence + 1}, commit {row.position}: {row.verdict}. {row.reason}"
        _mark(canvas, x, y, min(6.0, height * 0.38), row.verdict, tip)
    return canvas.finish(_verdict_legend(canvas, bottom + 24) + 8)


def _narrowed(suspected: tuple[int, int], row: TrialRow) -> tuple[int, int]:
    """The last good and the first bad position after one more trial; flakes do not widen it."""
    last_good, first_bad = suspected
    if row.position is None or not row.is_plain:
        return suspected
    if row.verdict is Verdict.GOOD and last_good < row.position < first_bad:
        return row.position, first_bad
    if row.verdict is Verdict.BAD and last_good < row.position < first_bad:
        return last_good, row.position
    return suspected


def posterior_bars(report: CulpritReport, *, width: int = WIDE, suffix: str = "") -> str:
    """The probability of each commit to be the first bad one; "" where it was not recorded."""
    shares = {suspicion.hash: suspicion.probability for suspicion in report.posterior.commits}
    count = len(report.commits)
    if not shares or count < 2:
        return ""
    likeliest = max(shares, key=lambda commit: shares[commit])
    others = [
        f"{OTHER_ANSWERS.get(name, name)}: {share:.2%}" for name, share in report.posterior.others.items()
    ]
    canvas = Canvas(
        f"posterior{suffix}",
        "Which commit is the first bad one?",
        f"The likeliest is {likeliest[:10]} with {show_confidence(shares[likeliest])}. Answers that blame no "
        f"commit: {', '.join(others) or 'none'}.",
        width=width,
    )
    top, height = canvas.top + 16, 64.0
    bottom = top + height
    step = (canvas.width - _LEFT - _RIGHT) / (count - 1)
    bar = max(1.5, min(14.0, step * 0.7))
    highest = max(shares.values())
    for position, commit in enumerate(report.commits):
        share = shares.get(commit.hash, 0.0)
        if share < 0.0005:  # not a pixel tall
            continue
        tall = max(1.0, height * share / highest)
        x = _place(canvas, count, position)
        culprit = commit.hash in {suspect.hash for suspect in report.suspects}
        canvas.rect(
            x - bar / 2,
            bottom - tall,
            bar,
            tall,
            "fb-bad" if culprit else "fb-c5",
            tip=f"{commit_words(commit)}: {share:.2%}",
        )
        if commit.hash == likeliest:
            words = f"{commit.short}  {show_confidence(share)}"
            half = text_width(words) * 0.54
            canvas.text(
                min(max(x, half), canvas.width - half), bottom - tall - 5, words, "fb-strong fb-middle"
            )
    canvas.line(_LEFT, bottom, canvas.width - _RIGHT, bottom)
    canvas.text(_LEFT, bottom + 16, "good end", "fb-small fb-muted")
    canvas.text(canvas.width - _RIGHT, bottom + 16, "bad end", "fb-small fb-muted fb-end")
    y = bottom + 16
    for words in others:
        y += 17
        canvas.text(_LEFT, y, visible(words, limit=60), "fb-small fb-muted")
    return canvas.finish(y + 8)


def _place(canvas: Canvas, count: int, position: int) -> float:
    return _LEFT + (canvas.width - _LEFT - _RIGHT) * position / (count - 1)


def _range_axis(canvas: Canvas, report: CulpritReport, top: float, bottom: float) -> None:
    count = len(report.commits)
    culprits = {commit.hash for commit in report.suspects}
    step = (canvas.width - _LEFT - _RIGHT) / (count - 1)
    wide = max(6.0, min(18.0, step))
    middle: list[float] = []
    for position, commit in enumerate(report.commits):
        x = _place(canvas, count, position)
        if commit.hash in culprits:
            canvas.rect(
                x - wide / 2,
                top - 2,
                wide,
                bottom - top + 4,
                "fb-culprit",
                tip=commit_words(commit),
                round_by=3,
            )
            middle.append(x)
        if count <= 80:
            canvas.line(x, bottom + 2, x, bottom + 6)
    canvas.line(_LEFT, bottom + 2, canvas.width - _RIGHT, bottom + 2)
    canvas.text(_LEFT - 6, top - 8, f"good {report.commits[0].short[:7]}", "fb-small fb-muted")
    canvas.text(canvas.width, top - 8, f"bad {report.commits[-1].short[:7]}", "fb-small fb-muted fb-end")
    if middle:
        words = (
            report.suspects[0].short[:7] if len(report.suspects) == 1 else f"{len(report.suspects)} suspects"
        )
        edge = text_width("good 1234567", 11) + 12
        x = sum(middle) / len(middle)
        half = text_width(words) / 2
        if edge + half < x < canvas.width - edge - half:
            canvas.text(x, top - 8, words, "fb-small fb-limit-text fb-middle")


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


def _verdict_legend(canvas: Canvas, y: float) -> float:
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
    wide = 26 + text_width("still suspected")
    if x + wide > canvas.width:
        x, y = _LEFT, y + 19
    canvas.rect(x, y - 9, 20, 10, "fb-band", round_by=3)
    canvas.text(x + 26, y, "still suspected")
    return y
