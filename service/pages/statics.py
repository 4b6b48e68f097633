"""The files that pages are made of: ours, and htmx. Nothing is fetched from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse

from bisection.rendering.svg import stylesheet
from service import problems
from service.problems import Problem

router = APIRouter()

FOLDER = Path(__file__).parents[1] / "static"
_MEDIA_TYPES = {
    "firstbad.css": "text/css; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "htmx.LICENSE.txt": "text/plain; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_KEPT = {"Cache-Control": "public, max-age=3600"}


@router.get("/static/pictures.css")
def show_picture_style() -> Response:
    """What the pictures of a search are drawn with."""
    return Response(stylesheet(), media_type="text/css; charset=utf-8", headers=_KEPT)


@router.get("/static/{name}")
def show_file(name: str) -> Response:
    if name not in _MEDIA_TYPES:
        raise Problem(problems.NOT_FOUND, f"There is no file {name[:60]!r} here.")
    return FileResponse(FOLDER / name, media_type=_MEDIA_TYPES[name], headers=_KEPT)


@router.get("/favicon.ico")
def show_icon() -> Response:
    """What a browser asks for where a page names no icon, as the report does, which stands alone."""
    return show_file("icon.svg")
