"""The form that asks for a bisection, checked while one types, and the reading of it.

The words of the form are people's (GiB, hours, KEY=VALUE); what it becomes is the body of
POST /v1/bisections, checked by the same code.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, BackgroundTasks, Request, Response
from fastapi.responses import RedirectResponse

from bisection.adapters.catalogue import BadCatalogueFile, Profile
from bisection.criteria import Criterion, CriterionKind
from service.bisections import UsesParts, create_bisection
from service.intake import MOST_PROOFS, BisectionRequest, normalise
from service.pages.forms import Fields, model_of
from service.pages.sessions import OwnPage, Writes
from service.pages.templates import page
from service.parts import Parts
from service.problems import FieldError, Problem
from service.registry_shapes import show_profile

router = APIRouter(prefix="/new")

#: The field of the form in which each kind's limit stands; of the others nothing may be given.
_LIMITS = {
    CriterionKind.OUT_OF_MEMORY: "capacity",
    CriterionKind.PEAK_MEMORY: "peak",
    CriterionKind.THROUGHPUT: "rate",
    CriterionKind.CRASH: "signature",
}
#: Where on the form an error of the body is shown; every other is shown above it.
_SHOWN_AT = {
    "criterion.kind": "kind",
    "criterion.capacity_bytes": "capacity",
    "criterion.signature": "signature",
    "budget.trials": "trials",
    "budget.gpu_hours": "gpu_hours",
    "budget.seconds": "hours",
}
_FIELDS = (
    *("profile", "good", "bad", "kind", "capacity", "peak", "rate", "signature", "overrides"),
    *("trials", "gpu_hours", "hours", "confidence", "parallel", "prove", "widen", "preview"),
)
_STARTING_WITH = {"trials": "60", "confidence": "0.99", "prove": "0", "preview": "on"}


@dataclass
class Reading:
    """A form on its way to a request: the body so far, and what is wrong with it."""

    fields: Mapping[str, str]
    body: dict[str, Any] = field(default_factory=dict)
    errors: list[FieldError] = field(default_factory=list)

    def number(self, name: str, *, whole: bool = False) -> float | int | None:
        """None where the field is empty, or no number: then that is said."""
        text = self.fields.get(name, "")
        if not text:
            return None
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            kind = "whole number" if whole else "number"
            self.errors.append(FieldError(field=name, message=f"is no {kind}", repair=f"write a {kind}"))
            return None
        return value


@router.get("")
def show_form(request: Request, caller: Writes, parts: UsesParts) -> Response:
    profile = request.query_params.get("profile", "")
    values = {**_STARTING_WITH, "profile": profile[:64], "nonce": secrets.token_urlsafe(12)}
    return page(request, "new.html", live=True, caller=caller, **_context(values, [], None, parts))


@router.post("/check", dependencies=[OwnPage])
def check_form(request: Request, _caller: Writes, fields: Fields, parts: UsesParts) -> Response:
    """What is wrong with the form so far, or what it asks for. Nothing is stored.

    An end that is not typed yet is no error while one types.
    """
    _, errors, asked = _understand(fields, parts)
    untyped = {name for name in ("good", "bad", "profile") if not fields.get(name)}
    context = _context(fields, [error for error in errors if error.field not in untyped], asked, parts)
    return page(request, "new_check.html", live=True, untyped=sorted(untyped), **context)


@router.post("", dependencies=[OwnPage])
def send_form(
    request: Request, caller: Writes, fields: Fields, parts: UsesParts, tasks: BackgroundTasks
) -> Response:
    """Makes the bisection. The same form sent twice makes one."""
    wanted, errors, _ = _understand(fields, parts)
    if errors or wanted is None:
        context = _context(fields, errors, None, parts)
        return page(request, "new.html", status=422, live=True, caller=caller, **context)
    digest = hashlib.sha256(wanted.model_dump_json().encode()).hexdigest()[:32]
    nonce = "".join(letter for letter in fields.get("nonce", "") if letter.isascii() and letter.isalnum())
    made = create_bisection(caller, wanted, parts, tasks, Response(), f"page-{nonce[:40]}-{digest}")
    return RedirectResponse(f"/bisections/{made.id}", status_code=303)


def _understand(
    fields: Mapping[str, str], parts: Parts
) -> tuple[BisectionRequest | None, list[FieldError], tuple[dict[str, Any], Profile] | None]:
    """The request, or what is wrong with the form; and the request as it would be stored."""
    reading = Reading(fields)
    _read(reading)
    try:
        wanted = model_of(BisectionRequest, reading.body)
        asked = normalise(wanted, parts.catalogue)
    except Problem as problem:
        return None, [*reading.errors, *map(_on_the_form(reading), problem.errors)], None
    return (None, reading.errors, None) if reading.errors else (wanted, [], asked)


def _read(reading: Reading) -> None:
    fields, body = reading.fields, reading.body
    body |= {name: fields.get(name, "") for name in ("profile", "good", "bad")}
    body |= {"overrides": _overrides(reading), "criterion": _criterion(reading)}
    hours = reading.number("hours")
    budget = {
        "trials": reading.number("trials", whole=True),
        "gpu_hours": reading.number("gpu_hours"),
        "seconds": hours * 3600 if hours is not None else None,
    }
    body["budget"] = {name: value for name, value in budget.items() if value is not None}
    for name, whole in (("confidence", False), ("parallel", True), ("prove", True)):
        value = reading.number(name, whole=whole)
        if value is not None:
            body[name] = value
    body |= {"widen": "widen" in fields, "preview": "preview" in fields}


def _overrides(reading: Reading) -> dict[str, Any]:
    """A line each; a value is JSON where it is valid JSON, text otherwise, as on the command line."""
    found: dict[str, Any] = {}
    for line in filter(None, map(str.strip, reading.fields.get("overrides", "").splitlines())):
        key, equals, text = (part.strip() for part in line.partition("="))
        if not equals:
            error = FieldError(
                field="overrides", message=f"has no '=' in {line[:60]!r}", repair="write KEY=VALUE"
            )
            reading.errors.append(error)
            continue
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _criterion(reading: Reading) -> dict[str, Any] | None:
    """None: the profile's."""
    chosen = next((kind for kind in _LIMITS if kind.value == reading.fields.get("kind")), None)
    for kind, name in _LIMITS.items():
        if kind is not chosen and reading.fields.get(name):
            what = f"{chosen.value.replace('_', ' ')} does" if chosen else "the profile's criterion does"
            message = f"is given, and {what} not use it"
            reading.errors.append(
                FieldError(field=name, message=message, repair="empty it, or choose its kind")
            )
    if chosen is None:
        if reading.fields.get("kind"):
            error = FieldError(field="kind", message="is none of the kinds", repair="choose one of them")
            reading.errors.append(error)
        return None
    if chosen is CriterionKind.CRASH:
        return {"kind": chosen, "signature": reading.fields.get("signature", "")}
    amount = reading.number(_LIMITS[chosen])
    if chosen is CriterionKind.THROUGHPUT:
        return {"kind": chosen, "threshold": amount}
    count = round(amount * 2**30) if amount is not None else None
    return {"kind": chosen, "capacity_bytes" if chosen is CriterionKind.OUT_OF_MEMORY else "threshold": count}


def _on_the_form(reading: Reading) -> Any:
    """Of an error of the body, the same at its field of the form."""
    kind = reading.fields.get("kind", "")
    threshold = "rate" if kind == CriterionKind.THROUGHPUT.value else "peak"

    def moved(error: FieldError) -> FieldError:
        place = threshold if error.field == "criterion.threshold" else _SHOWN_AT.get(error.field, error.field)
        first = place.split(".", 1)[0]
        if first == "overrides" and place != first:
            return FieldError(field=first, message=f"{place[10:]} {error.message}", repair=error.repair)
        return FieldError(
            field={"criterion": "kind"}.get(first, first), message=error.message, repair=error.repair
        )

    return moved


def _context(
    values: Mapping[str, str],
    errors: list[FieldError],
    asked: tuple[dict[str, Any], Profile] | None,
    parts: Parts,
) -> dict[str, Any]:
    at = {name: [error for error in errors if error.field == name] for name in _FIELDS}
    try:
        profiles = [show_profile(profile) for profile in parts.catalogue.profiles()]
    except BadCatalogueFile:
        if asked is not None:
            raise
        profiles = []
    return {
        "values": values,
        "errors": errors,
        "at": at,
        "elsewhere": [error for error in errors if error.field not in at],
        "profiles": profiles,
        "kinds": list(_LIMITS),
        "most_proofs": MOST_PROOFS,
        "asked": _asked(asked, parts) if asked else None,
    }


def _asked(asked: tuple[dict[str, Any], Profile], parts: Parts) -> dict[str, Any]:
    request, profile = asked
    return {
        "request": request,
        "criterion": Criterion.from_json(request["criterion"]),
        "profile": show_profile(profile),
        "workers": len(parts.roster.alive(profile.queue)),
    }
