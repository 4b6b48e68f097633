"""A sweep's report as one self-contained page, under the same policy as a culprit report's."""

from __future__ import annotations

import re

from markupsafe import Markup

from bisection.rendering.html import content_security_policy, page_environment, page_style
from bisection.rendering.svg import NARROW, WIDE
from bisection.rendering.sweep_pictures import sweep_picture
from bisection.rendering.sweep_words import (
    HEADS,
    headline,
    limit_words,
    point_words,
    said_words,
    stamp,
    tally,
    title,
)
from bisection.sweep_report import SweepReport


def render_sweep_html(report: SweepReport) -> str:
    """The whole page. While the sweep runs it is what is known so far."""
    wide, narrow = (
        Markup(sweep_picture(report, width=WIDE, suffix="-wide")),
        Markup(sweep_picture(report, width=NARROW, suffix="-narrow")),
    )
    page: str = (
        page_environment()
        .get_template("sweep.html.jinja")
        .render(
            report=report,
            title=title(report),
            style=Markup(page_style()),
            policy=content_security_policy(),
            stamp=stamp(report),
            headline=headline(report),
            tally=tally(report),
            limit=limit_words(report),
            pictures=(wide, narrow) if wide else None,
            heads=HEADS,
            points=point_words(report),
            said=said_words(report),
        )
    )
    return re.sub(r"\n{2,}", "\n", page)
