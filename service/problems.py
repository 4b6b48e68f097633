"""What can go wrong between a caller and the service, as RFC 9457 problems.

Every kind is listed here once: its page in docs/errors, its status, its title.
The occurrence says what is wrong and how to mend it. Nothing here knows HTTP
frameworks; `problem_responses` turns problems into answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


@dataclass(frozen=True, kw_only=True)
class ProblemKind:
    """A kind of problem. ``name`` is the page in docs/errors and the end of its ``type`` URL."""

    name: str
    status: int
    title: str
    cause: str  #: for the catalogue page: when this occurs
    repair: str  #: what to do where the occurrence says nothing better


MALFORMED_BODY = ProblemKind(
    name="malformed-body",
    status=400,
    title="The body cannot be read",
    cause="The body is not valid JSON.",
    repair="Send one JSON object in UTF-8 with Content-Type: application/json.",
)
UNAUTHENTICATED = ProblemKind(
    name="unauthenticated",
    status=401,
    title="A token is needed",
    cause="The request brings no token, or one that is unknown, expired or revoked.",
    repair="Send the header 'Authorization: Bearer TOKEN'; an operator issues tokens.",
)
SIGNATURE_REFUSED = ProblemKind(
    name="signature-refused",
    status=401,
    title="The signature does not fit the body",
    cause="X-Hub-Signature-256 is missing, or was not made over this body with a registered secret.",
    repair="Set the same secret in GitHub's webhook settings and in the secret_file of the repository.",
)
FORBIDDEN = ProblemKind(
    name="forbidden",
    status=403,
    title="The token does not allow this",
    cause="The token is valid, but lacks the scope that this call needs.",
    repair="Use a token with that scope; an operator issues tokens.",
)
NOT_FOUND = ProblemKind(
    name="not-found",
    status=404,
    title="There is no such thing here",
    cause="The path, or the id in it, is not known here.",
    repair="Check the path against /openapi.json, and the id against GET /v1/bisections.",
)
METHOD_NOT_ALLOWED = ProblemKind(
    name="method-not-allowed",
    status=405,
    title="This path does not know the method",
    cause="The path exists, but not for this HTTP method.",
    repair="Use one of the methods in the Allow header.",
)
IDEMPOTENCY_CONFLICT = ProblemKind(
    name="idempotency-conflict",
    status=409,
    title="The Idempotency-Key was used for another request",
    cause="A key stands for one request; the same key came with another body.",
    repair="Send a new key for a new request.",
)
WRONG_STATE = ProblemKind(
    name="wrong-state",
    status=409,
    title="The bisection does not stand where this is possible",
    cause="Only a planned bisection can be confirmed, only a held one approved or refused, only one that has "
    "not ended cancelled, and only an ended one tried again, extended, replayed or retracted.",
    repair="Read the bisection's status first.",
)
REPORT_NOT_READY = ProblemKind(
    name="report-not-ready",
    status=409,
    title="There is no report yet",
    cause="The report is made when the search has ended.",
    repair="Wait until the status is 'ended': watch GET /v1/bisections/ID/events.",
)
BODY_TOO_LARGE = ProblemKind(
    name="body-too-large",
    status=413,
    title="The body is too large",
    cause="The body exceeds the limit of this path.",
    repair="Send less; a bisection needs a few hundred bytes.",
)
UNSUPPORTED_MEDIA_TYPE = ProblemKind(
    name="unsupported-media-type",
    status=415,
    title="The body has the wrong type",
    cause="The webhook is set to send a form instead of JSON.",
    repair="Choose the content type application/json in GitHub's webhook settings.",
)
INVALID_REQUEST = ProblemKind(
    name="invalid-request",
    status=422,
    title="The request is not valid",
    cause="One or more fields are missing, misspelt, or hold a value that cannot be used.",
    repair="Mend the fields listed in 'errors'.",
)
NOT_REGISTERED = ProblemKind(
    name="not-registered",
    status=422,
    title="The profile or the repository is not registered",
    cause="A request can only name what an operator registered.",
    repair="Use a name from GET /v1/profiles and GET /v1/repositories, or ask the operator to add one.",
)
TOO_MANY_REQUESTS = ProblemKind(
    name="too-many-requests",
    status=429,
    title="The token makes too many requests",
    cause="A token may make so many requests a second, and has made more.",
    repair="Wait as many seconds as Retry-After says; watch events instead of polling.",
)
INTERNAL_ERROR = ProblemKind(
    name="internal-error",
    status=500,
    title="The service failed",
    cause="A fault of the service itself; nothing is wrong with the request.",
    repair="Try again; if it stays, give the operator the reference, which stands in the service's log.",
)
BAD_CATALOGUE = ProblemKind(
    name="bad-catalogue",
    status=503,
    title="The operator's catalogue is not valid",
    cause="A file in profiles/ or repositories/ does not say what it must.",
    repair="The operator has to mend it; the service's log names the file, the field and the repair.",
)
DATABASE_UNAVAILABLE = ProblemKind(
    name="database-unavailable",
    status=503,
    title="The database does not answer",
    cause="The database is away, its disk is full, or it has been busy for too long.",
    repair="Try again in some seconds; if it stays, the operator has to look at the database.",
)
NOT_READY = ProblemKind(
    name="not-ready",
    status=503,
    title="The service cannot work yet",
    cause="The database, its schema, its disk or the catalogue is not usable.",
    repair="The operator has to mend what 'errors' lists.",
)

KINDS: Mapping[str, ProblemKind] = {
    kind.name: kind
    for kind in (
        MALFORMED_BODY,
        UNAUTHENTICATED,
        SIGNATURE_REFUSED,
        FORBIDDEN,
        NOT_FOUND,
        METHOD_NOT_ALLOWED,
        IDEMPOTENCY_CONFLICT,
        WRONG_STATE,
        REPORT_NOT_READY,
        BODY_TOO_LARGE,
        UNSUPPORTED_MEDIA_TYPE,
        INVALID_REQUEST,
        NOT_REGISTERED,
        TOO_MANY_REQUESTS,
        INTERNAL_ERROR,
        BAD_CATALOGUE,
        DATABASE_UNAVAILABLE,
        NOT_READY,
    )
}


class FieldError(BaseModel):
    """One field that cannot be used."""

    field: str = Field(description="Where: a dotted path into the body, or the name of a parameter.")
    message: str = Field(description="What is wrong.")
    repair: str = Field(description="How to mend it.")


class ProblemBody(BaseModel):
    """An error, as RFC 9457 shapes it."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(description="URL of the page that explains this kind of problem.")
    title: str = Field(description="The kind of problem, always the same words for the same type.")
    status: int
    detail: str = Field(description="What is wrong this time, and how to mend it.")
    repair: str = Field(description="The part of the detail that says how to mend it.")
    instance: str = Field(description="The path that was asked for.")
    errors: list[FieldError] = Field(default=[], description="The fields at fault, where there are any.")


class Problem(Exception):
    """A problem to be answered. ``repair`` is the kind's where none is given."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        *,
        repair: str = "",
        errors: Iterable[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.repair = repair or kind.repair
        self.errors = tuple(errors)
        self.headers = dict(headers or {})

    def body(self, *, base_url: str, instance: str) -> ProblemBody:
        return ProblemBody(
            type=f"{base_url.rstrip('/')}/errors/{self.kind.name}",
            title=self.kind.title,
            status=self.kind.status,
            detail=f"{self.detail} {self.repair}",
            repair=self.repair,
            instance=instance,
            errors=list(self.errors),
        )


def wrong(message: str, repair: str) -> PydanticCustomError:
    """For validators: a value that cannot be used, and how to mend it."""
    return PydanticCustomError("firstbad", "{message}", {"message": message, "repair": repair})


def field_errors(errors: Iterable[Mapping[str, Any]]) -> list[FieldError]:
    """Pydantic's errors in this service's words."""
    return [_field_error(error) for error in errors]


def _field_error(error: Mapping[str, Any]) -> FieldError:
    places = {"body", "query", "path", "header", "cookie"}
    location = [str(part) for part in error["loc"]]
    path = location[1:] if location and location[0] in places else location
    if location[:1] == ["query"]:
        path = path[:1]  # of a parameter that may be given several times, all are shown by its name
    field = ".".join(part for part in path if part != "[key]") or "the body"
    message, repair = _explain(error)
    return FieldError(field=field[:200], message=message, repair=repair)


def _explain(error: Mapping[str, Any]) -> tuple[str, str]:
    text = str(error["msg"])
    match error["type"]:
        case "firstbad":
            return error["ctx"]["message"], error["ctx"]["repair"]
        case "missing":
            return "is missing", "add it"
        case "extra_forbidden":
            return "is not a field of this request", "remove it, or check its spelling in /openapi.json"
        case "model_attributes_type" | "dict_type":
            return "is not a JSON object", "send an object in braces with Content-Type: application/json"
    if text.startswith("Input should "):
        return "is not accepted", f"it should {text.removeprefix('Input should ')}"
    return text, "send a value of the type in /openapi.json"
