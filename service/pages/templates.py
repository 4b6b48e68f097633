"""How a page is made of a template, and what every page may do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from fastapi import Request, Response
from fastapi.templating import Jinja2Templates
from markupsafe import Markup

from bisection.quantities import counted, show_bytes
from bisection.rendering.escaping import terminal_safe, visible
from bisection.rendering.html import page_environment
from bisection.rendering.wording import duration
from bisection.specification import end_words
from service.envelope import PAGE_POLICY

FOLDER = Path(__file__).parents[1] / "templates"

#: Of the pages that keep themselves up to date: htmx runs, and asks this service.
LIVE_POLICY = PAGE_POLICY.replace(
    "default-src 'none';", "default-src 'none'; script-src 'self'; connect-src 'self';"
)


def make_templates() -> Jinja2Templates:
    """Autoescape is on for .html, and `visible` shows characters that would hide or reorder text:
    what is shown was written by commits, training jobs and callers."""
    templates = Jinja2Templates(directory=FOLDER)
    templates.env.trim_blocks = templates.env.lstrip_blocks = True
    templates.env.filters |= {
        "visible": lambda value, limit=600: visible(str(value), limit=limit),
        "block": lambda text: terminal_safe(text, limit=200_000),
        "ticks": page_environment().filters["ticks"],
        "end_words": end_words,
        "bytes": show_bytes,
        "duration": duration,
        "counted": counted,
        "moment": _moment,
        "picture": Markup,  # only for SVG that bisection.rendering drew
    }
    return templates


def _moment(stamp: str | float) -> str:
    """UTC, to the second."""
    if not isinstance(stamp, str):
        stamp = datetime.fromtimestamp(stamp, UTC).isoformat()
    return f"{stamp[:19].replace('T', ' ')} UTC"


def page(
    request: Request, name: str, *, status: int = 200, live: bool = False, **context: object
) -> Response:
    """The page of a template. ``live`` lets htmx run on it."""
    templates = cast(Jinja2Templates, request.app.state.templates)
    headers = {
        "Content-Security-Policy": LIVE_POLICY if live else PAGE_POLICY,
        "Referrer-Policy": "same-origin",
    }
    return templates.TemplateResponse(
        request, name, {**context, "live": live}, status_code=status, headers=headers
    )
