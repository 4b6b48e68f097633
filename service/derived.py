"""REST: bisections that are made of an ended one. Its measurements are kept; verdicts are derived anew.

What is kept is `bisection.ancestry`'s matter, and the workers copy it; here requests are checked and stored.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Response
from pydantic import ConfigDict, Field, model_validator

from bisection.adapters.catalogue import NotRegistered, Profile
from bisection.adapters.storage.bisections import BisectionRow, Status
from bisection.adapters.storage.trials import Trials
from bisection.ancestry import Ancestor, Derivation
from bisection.replaying import replay
from bisection.specification import BisectionSpec, end_words
from service import problems
from service.access import Reader, Writer
from service.bisections import ACCEPTED_HEADERS, Existing, IdempotencyKey, UsesParts, accepted, store
from service.intake import (
    CriterionRequest,
    RangeEnd,
    Shape,
    invalid,
    not_registered,
    whole_criterion,
    whole_end,
)
from service.parts import Parts
from service.problem_responses import document
from service.problems import FieldError, Problem
from service.replay_shapes import ReplayView, show_replay
from service.shapes import BisectionView

router = APIRouter(prefix="/v1/bisections/{bisection_id}", tags=["derived"])

_RESPONSES: dict[int | str, dict[str, Any]] = {
    202: {"description": "Stored as a new bisection; `Location` names it.", **ACCEPTED_HEADERS},
    **document(
        problems.MALFORMED_BODY,
        problems.UNAUTHENTICATED,
        problems.FORBIDDEN,
        problems.NOT_FOUND,
        problems.IDEMPOTENCY_CONFLICT,
        problems.WRONG_STATE,
        problems.INVALID_REQUEST,
        problems.NOT_REGISTERED,
        problems.BAD_CATALOGUE,
    ),
}
_Preview = Annotated[bool, Field(strict=True, description="Make a plan only; it starts when confirmed.")]


class RetryRequest(Shape):
    """Ask an ended bisection's question again."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}, {"anew": True, "preview": True}]})

    anew: Annotated[bool, Field(strict=True)] = Field(
        default=False,
        description="Measure everything anew; otherwise only what was lost or could not be judged.",
    )
    preview: _Preview = False


class ExtensionRequest(Shape):
    """An older good end, a newer bad end, or both."""

    model_config = ConfigDict(
        title="Extension",
        json_schema_extra={"examples": [{"good": "v0.2.2"}, {"bad": "main", "preview": True}]},
    )

    good: RangeEnd | None = Field(default=None, description="A commit before the good end so far.")
    bad: RangeEnd | None = Field(default=None, description="A commit after the bad end so far.")
    preview: _Preview = False

    @model_validator(mode="after")
    def _names_an_end(self) -> ExtensionRequest:
        if self.good is None and self.bad is None:
            raise ValueError("names neither a good nor a bad end")
        return self


class ReplayRequest(Shape):
    """Another criterion for the same measurements."""

    model_config = ConfigDict(
        title="ReplayCriterion",
        json_schema_extra={
            "examples": [
                {"criterion": {"kind": "peak_memory", "threshold": 73014444032}},
                {"criterion": {"kind": "out_of_memory", "capacity_bytes": 103079215104}, "confidence": 0.95},
            ]
        },
    )

    criterion: CriterionRequest
    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = Field(
        default=None, description="Posterior at which a commit may be named; as before where not given."
    )


@router.post(
    "/retry",
    status_code=202,
    operation_id="retryBisection",
    summary="Ask the same question again",
    response_model=BisectionView,
    responses=_RESPONSES,
)
def retry_bisection(
    caller: Writer,
    row: Existing,
    wanted: RetryRequest,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> BisectionView:
    """A new bisection between the same two commits, even if a branch has moved on since.

    The profile is taken as the catalogue has it now, so that what was wrong with it can be mended first;
    where that changes what a trial runs, nothing measured before counts.
    """
    _require_ended(row)
    derivation = Derivation.ANEW if wanted.anew else Derivation.RETRY
    request = {
        **row.request,
        **_ends(row),
        "reuse": bool(row.request.get("reuse", True)) and not wanted.anew,
        "preview": wanted.preview,
        "ancestor": Ancestor(bisection=row.id, derivation=derivation).to_json(),
    }
    made = store(request, _current_profile(row, parts), caller, parts, idempotency_key)
    return accepted(made, parts, tasks, response)


@router.post(
    "/extend",
    status_code=202,
    operation_id="extendBisection",
    summary="Look through a longer range",
    response_model=BisectionView,
    responses=_RESPONSES,
)
def extend_bisection(
    caller: Writer,
    row: Existing,
    wanted: ExtensionRequest,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> BisectionView:
    """A new bisection that keeps every measurement: for a good end that turned out to be bad, or a bad end
    from before the regression."""
    _require_range(row)
    errors: list[FieldError] = []
    ends: dict[str, Any] = _ends(row)
    for name, end in (("good", wanted.good), ("bad", wanted.bad)):
        if end is not None:
            ends[name] = whole_end(end, name, row.request["repository"], parts.catalogue, errors)
    if not errors and ends["good"] == ends["bad"]:
        errors.append(
            FieldError(
                field="good" if wanted.good is not None else "bad",
                message=f"is the other end already ({end_words(ends['bad'])})",
                repair="name a commit outside of the range so far",
            )
        )
    if errors:
        raise invalid(errors)
    request = {
        **row.request,
        **ends,
        "preview": wanted.preview,
        "ancestor": Ancestor(bisection=row.id, derivation=Derivation.EXTENSION).to_json(),
    }
    made = store(request, _same_job(row, parts), caller, parts, idempotency_key)
    return accepted(made, parts, tasks, response)


@router.post(
    "/replay",
    operation_id="previewReplay",
    summary="Judge the same measurements by another criterion",
    response_model=ReplayView,
    responses=document(
        problems.MALFORMED_BODY,
        problems.UNAUTHENTICATED,
        problems.FORBIDDEN,
        problems.NOT_FOUND,
        problems.WRONG_STATE,
        problems.INVALID_REQUEST,
    ),
)
def preview_replay(_caller: Reader, row: Existing, wanted: ReplayRequest, parts: UsesParts) -> ReplayView:
    """The finding that they support, or the trials that it still needs. Nothing is stored and nothing is run.

    What another culprit carries (a moved pin, a merge) is opened by the bisection that is made of this.
    """
    spec, request = _replayed(row, wanted)
    trials = parts.trials.of(row.id)
    told = replay(spec, Trials.ledger(trials), _criterion(row, wanted), request["confidence"])
    return show_replay(told, trials)


@router.post(
    "/replay/confirm",
    status_code=202,
    operation_id="confirmReplay",
    summary="Make a bisection of a replay",
    response_model=BisectionView,
    responses=_RESPONSES,
)
def confirm_replay(
    caller: Writer,
    row: Existing,
    wanted: ReplayRequest,
    parts: UsesParts,
    tasks: BackgroundTasks,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> BisectionView:
    """It takes the measurements over and runs only what is still missing; the old one stays as it is."""
    _, request = _replayed(row, wanted)
    made = store(request, _same_job(row, parts), caller, parts, idempotency_key)
    return accepted(made, parts, tasks, response)


def _replayed(row: BisectionRow, wanted: ReplayRequest) -> tuple[BisectionSpec, dict[str, Any]]:
    spec = _require_range(row)
    confidence = wanted.confidence or spec.confidence
    return spec, {
        **row.request,
        **_ends(row),
        "criterion": _criterion(row, wanted).to_json(),
        "confidence": confidence,
        "preview": False,
        "ancestor": Ancestor(bisection=row.id, derivation=Derivation.REPLAY).to_json(),
    }


def _criterion(row: BisectionRow, wanted: ReplayRequest) -> Any:
    errors: list[FieldError] = []
    criterion = whole_criterion(wanted.criterion, Profile.model_validate(row.profile), errors)
    if criterion is None:
        raise invalid(errors)
    return criterion


def _require_ended(row: BisectionRow) -> None:
    if row.status is not Status.ENDED:
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} is {row.status.value}, and only one that has ended can be gone on from.",
            repair="Wait for its end, or cancel it.",
        )


def _require_range(row: BisectionRow) -> BisectionSpec:
    _require_ended(row)
    spec = row.specification
    if spec is None:
        raise Problem(
            problems.WRONG_STATE,
            f"Bisection {row.id} ended before its range was known, so nothing was measured.",
            repair="Mend what its finding names, and create a new one.",
        )
    return spec


def _ends(row: BisectionRow) -> dict[str, Any]:
    """The ends as hashes, since a branch may have moved; pairs of pins, and what was not found, as asked."""
    spec = row.specification
    ends = {"good": row.request["good"], "bad": row.request["bad"]}
    if spec is None or not all(isinstance(end, str) for end in ends.values()):
        return ends
    return {"good": spec.range.good.hash, "bad": spec.range.bad.hash}


def _current_profile(row: BisectionRow, parts: Parts) -> Profile:
    try:
        parts.catalogue.repository(row.request["repository"])
        return parts.catalogue.profile(row.request["profile"])
    except NotRegistered as error:
        raise Problem(
            problems.NOT_REGISTERED, f"{error}.", errors=[not_registered("profile", error)]
        ) from None


def _same_job(row: BisectionRow, parts: Parts) -> Profile:
    """The profile as it is now, for its queue and limits, if its trials are still the same; else as it was.

    What was measured by another job could not be compared with what is measured next.
    """
    stored = Profile.model_validate(row.profile)
    try:
        current = parts.catalogue.profile(stored.name)
    except NotRegistered:
        return stored
    return current if current.digest == stored.digest else stored
