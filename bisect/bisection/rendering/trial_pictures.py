"""The picture of the last belief: how much each commit is suspected.

Draws what a report holds; judges nothing. What led there is drawn by `belief_pictures`.
"""

from __future__ import annotations

from bisection.quantities import show_confidence
from bisection.rendering.escaping import visible
from bisection.rendering.svg import WIDE, Canvas, text_width
from bisection.rendering.wording import OTHER_ANSWERS, commit_words
from bisection.report import CulpritReport

_LEFT, _RIGHT = 34.0, 12.0


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
