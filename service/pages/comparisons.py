"""Two configurations beside each other: what changes in memory, and which key explains it."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import UploadFile

from service import problems
from service.configuration_texts import has_aliases, parse_configuration
from service.estimates import BODY_BYTES, EstimateRequest, Question, ask
from service.pages.forms import model_of
from service.pages.sessions import OwnPage, SignedIn
from service.pages.templates import page
from service.problems import FieldError, Problem

router = APIRouter(prefix="/compare", max_body_size=BODY_BYTES)

_SIDES = ("good", "bad")


async def _fields(request: Request) -> dict[str, str]:
    """Text fields, and files as text: what was chosen as a file goes before what was pasted."""
    fields: dict[str, str] = {}
    async with request.form(max_files=2, max_fields=10, max_part_size=BODY_BYTES) as form:
        for name, value in form.multi_items():
            if not isinstance(value, UploadFile):
                fields.setdefault(name, value.strip())
            elif value.size:
                fields[name.removesuffix("_file")] = (await value.read()).decode("utf-8", "replace")
    return fields


@router.get("")
def show_form(request: Request, caller: SignedIn) -> Response:
    return page(request, "compare.html", caller=caller, values={}, errors=[], answer=None)


@router.post("", dependencies=[OwnPage])
def compare(
    request: Request, caller: SignedIn, fields: Annotated[dict[str, str], Depends(_fields)]
) -> Response:
    """Nothing is stored and no GPU is asked."""
    try:
        answer = _answer(caller, fields)
    except Problem as problem:
        if problem.kind is not problems.INVALID_REQUEST:
            raise
        errors = [_on_the_form(error) for error in problem.errors]
        return page(
            request, "compare.html", status=422, caller=caller, values=fields, errors=errors, answer=None
        )
    return page(request, "compare.html", caller=caller, values=fields, errors=[], answer=answer)


def _answer(caller: Any, fields: dict[str, str]) -> dict[str, Any]:
    errors: list[FieldError] = []
    configs = {side: _config(fields.get(side, ""), side, errors) for side in _SIDES}
    gpus = fields.get("gpus", "")
    if gpus and not (gpus.isascii() and gpus.isdigit() and int(gpus)):
        errors.append(FieldError(field="gpus", message="is no number of GPUs", repair="write a whole number"))
    if errors:
        raise Problem(problems.INVALID_REQUEST, "The form cannot be used.", errors=errors)
    size = {"world_size": int(gpus)} if gpus else {}
    wanted = {
        "question": Question.COMPARISON,
        "config": configs["good"],
        **size,
        "against": {"config": configs["bad"], **size},
    }
    return _shown(ask(caller, model_of(EstimateRequest, wanted)))


def _config(text: str, side: str, errors: list[FieldError]) -> dict[str, Any]:
    try:
        if not text.strip():
            raise ValueError("is missing")
        if has_aliases(text):
            raise ValueError("repeats parts of itself by YAML aliases ('*name')")
        return parse_configuration(text, f"the {side} configuration")
    except ValueError as error:
        repair = "paste or choose a resolved configuration in YAML or JSON, or Megatron-LM's arguments"
        errors.append(FieldError(field=side, message=str(error)[:500], repair=repair))
        return {}


def _on_the_form(error: FieldError) -> FieldError:
    place = error.field
    for start, side in (("against", "bad"), ("config", "good"), ("world_size", "gpus")):
        if place.split(".")[0] == start:
            place = "gpus" if place.endswith("world_size") else side
    return FieldError(field=place, message=error.message, repair=error.repair)


def _shown(answer: dict[str, Any]) -> dict[str, Any]:
    """Bytes by component beside the answer; the largest change first."""
    change: defaultdict[str, int] = defaultdict(int)
    for cell in answer["delta"]:
        change[cell["component"]] += cell["bytes"]
    before, after = (_by_component(answer[side]["breakdown"]) for side in ("before", "after"))
    rows = [
        (name, before.get(name, 0), after.get(name, 0), change[name]) for name in {*before, *after, *change}
    ]
    return {**answer, "rows": sorted(rows, key=lambda row: (-abs(row[3]), -row[2], row[0]))}


def _by_component(breakdown: Any) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for cell in breakdown:
        found[cell["component"]] += cell["bytes"]
    return found
