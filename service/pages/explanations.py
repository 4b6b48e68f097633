"""The pages of docs/errors: what every problem, outcome and end of a search means."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from markdown_it import MarkdownIt
from markupsafe import Markup

from service import problems
from service.pages.templates import page
from service.problems import Problem

router = APIRouter()

_NAME = re.compile(r"[a-z][a-z-]{0,60}")
_PACKED = Path(__file__).parents[1] / "explanations"  #: in a wheel
_SOURCE = Path(__file__).parents[2] / "docs" / "errors"  #: in a checkout


def explanation(name: str) -> str | None:
    """The Markdown of a page; None where there is none."""
    if not _NAME.fullmatch(name):
        return None
    folder = _PACKED if _PACKED.is_dir() else _SOURCE
    path = folder / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None


@cache
def _shown(name: str) -> tuple[str, Markup] | None:
    """Title and HTML. The texts are ours; links to pages that are not served here become plain words."""
    text = explanation(name)
    if text is None:
        return None
    text = re.sub(r"\]\(([a-z-]+)\.md(?:#[^)]*)?\)", r"](/errors/\1)", text)
    text = re.sub(r"\[([^\]]*)\]\(\.\./([^)]*)\)", r"\1 (docs/\2)", text)
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return text.splitlines()[0].removeprefix("# "), Markup(html)


@router.get("/errors")
def show_index(request: Request) -> Response:
    return show_explanation(request, "index")


@router.get("/errors/{name}")
def show_explanation(request: Request, name: str) -> Response:
    """What a problem's `type`, and a report's note, point to. Without a token: it says nothing of anybody."""
    found = _shown(name)
    if found is None:
        raise Problem(
            problems.NOT_FOUND,
            f"Nothing that firstbad tells of is called {name[:60]!r}.",
            repair="Look through the list at /errors.",
        )
    return page(request, "explanation.html", title=found[0], text=found[1])
