"""The drawing of pictures: a canvas for one SVG, its words, its stamp, its scales.

No report here: `memory_pictures` and `trial_pictures` draw with it. Everything is styled by classes
of pictures.css, so that a page may forbid inline styles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

from bisection.rendering.escaping import markup

#: Widths at which a picture is legible without zooming: on a desktop and on a phone.
WIDE, NARROW = 760, 350

#: Mean advance of a letter in shares of the font size, to see what fits. 0.6 is DejaVu Sans, the widest
#: of the fonts that the pages may get (Arial: 0.52).
_LETTER = 0.6


def stylesheet() -> str:
    return resources.files("bisection.rendering").joinpath("pictures.css").read_text(encoding="utf-8")


def text_width(text: str, size: float = 12) -> float:
    return len(text) * _LETTER * size


def standalone(picture: str) -> str:
    """A picture as a file of its own, with its styles."""
    return re.sub(r"(<svg [^>]*>)", lambda m: f"{m[1]}<style>{stylesheet()}</style>", picture, count=1)


class Canvas:
    """Collects the marks of one picture; y grows downwards, units are CSS pixels.

    ``name`` becomes the ids of the title and the description, and must be unique on a page.
    """

    def __init__(self, name: str, title: str, description: str, *, width: int, stamp: str = "") -> None:
        self.name, self.title, self.description, self.width = name, title, description, width
        self.marks: list[str] = []
        self.top = self._heading(title, stamp)

    def _heading(self, title: str, stamp: str) -> float:
        self.text(0, 16, title, "fb-heading")
        if not stamp:
            return 30
        wide = text_width(stamp, 11) * 1.22 + 14
        beside = text_width(title, 14) * 1.06 + 12
        fits = beside + wide <= self.width
        x, y = (self.width - wide - 1, 2) if fits else (1, 24)
        self.marks.append(
            f'<rect class="fb-stamp" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="20" rx="4"/>'
            f'<text class="fb-stamp-text" x="{x + 7:.1f}" y="{y + 14}">{markup(stamp)}</text>'
        )
        return 34 if fits else 56

    def text(self, x: float, y: float, words: str, classes: str = "") -> None:
        self.marks.append(f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{markup(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, classes: str = "fb-rule") -> None:
        self.marks.append(
            f'<line class="{classes}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        classes: str,
        *,
        tip: str = "",
        round_by: float = 0,
    ) -> None:
        self.marks.append(
            f'<rect class="{classes}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{max(height, 0):.1f}" rx="{round_by:g}">{_tip(tip)}</rect>'
        )

    def path(self, points: Sequence[tuple[float, float]], classes: str) -> None:
        if len(points) > 1:
            joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            self.marks.append(f'<polyline class="{classes}" points="{joined}"/>')

    def shape(self, data: str, classes: str, *, tip: str = "") -> None:
        """A filled path; ``data`` is made of numbers by the caller."""
        self.marks.append(f'<path class="{classes}" d="{data}">{_tip(tip)}</path>')

    def finish(self, height: float) -> str:
        title, description = f"{self.name}-title", f"{self.name}-description"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="fb-picture" role="img" '
            f'viewBox="0 0 {self.width} {height:.0f}" width="{self.width}" height="{height:.0f}" '
            f'aria-labelledby="{title} {description}">'
            f'<title id="{title}">{markup(self.title)}</title>'
            f'<desc id="{description}">{markup(self.description)}</desc>{"".join(self.marks)}</svg>'
        )


def _tip(words: str) -> str:
    return f"<title>{markup(words)}</title>" if words else ""


def ticks(highest: float, most: int) -> list[float]:
    """At most ``most`` round values from 0 to ``highest``: steps of 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0]
    power = 10.0 ** (len(f"{int(highest)}") - 1) if highest >= 1 else 1e-6
    while power * most * 10 < highest:
        power *= 10
    steps = [power * factor / 10 for factor in (1, 2, 5, 10, 20, 50, 100)]
    step = next((step for step in steps if highest / step <= most), steps[-1])
    return [step * index for index in range(int(highest / step + 1e-9) + 1)]
