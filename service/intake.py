"""What a caller may ask for, and how it becomes the normalised request that is stored.

Everything that can be decided without git is decided here, so that a caller
learns of it at once. What only git knows (does the ref exist, is good before
bad) is a worker's matter. Nothing here does I/O but reading the catalogue.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from bisection.adapters.catalogue import Catalogue, NotRegistered, Profile
from bisection.criteria import Criterion, CriterionKind
from bisection.specification import BisectionSpec, Budget, end_words
from service import problems
from service.problems import FieldError, Problem, wrong

VERSION = 1
#: git's own limit is the file system's 255 bytes a path component; longer words are no refs.
LONGEST_REF = 250
LONGEST_TEXT = 500
MOST_OVERRIDES = 200
#: log2 of any real range, times the repeats, stays below a hundred; more is a slip of the keyboard.
MOST_TRIALS = 1000
#: A report lists no more remedies.
MOST_PROOFS = 8
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

Name = Annotated[str, Field(min_length=1, max_length=64)]
Scalar = bool | int | float | str | None


def _is_plain(text: str) -> bool:
    """No control, format, surrogate or unassigned characters: what is shown is what is there."""
    return not any(unicodedata.category(letter).startswith("C") for letter in text)


def _ref(value: object) -> str:
    if not isinstance(value, str):
        raise wrong("is not a ref", "give a branch, a tag or a commit hash as a string")
    ref = value.strip()
    if not ref:
        raise wrong("is empty", "give a branch, a tag or a commit hash")
    if len(ref) > LONGEST_REF:
        raise wrong(f"is longer than {LONGEST_REF} characters", "give a branch, a tag or a commit hash")
    if not _is_plain(ref):
        raise wrong("holds control characters", "remove them; copy the ref again from git")
    if ref.startswith("-"):
        raise wrong("starts with '-', as no ref does", "give a branch, a tag or a commit hash")
    return ref


def _range_end(value: object) -> str | dict[str, str]:
    if not isinstance(value, dict):
        return _ref(value)
    if not value:
        raise wrong("names no repository", "give a ref, or an object {repository: ref}")
    return {str(name): _ref(ref) for name, ref in value.items()}


def _key(value: object) -> str:
    if not isinstance(value, str) or len(value) > 200 or not _KEY.fullmatch(value):
        raise wrong("is not a configuration key", "use names joined by dots, such as train.micro_batch_size")
    return value


def _scalar(value: object) -> Scalar:
    if isinstance(value, dict | list):
        raise wrong("is not a scalar", "give each nested value its own dotted key")
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong("is not a finite number", "give a number, true, false, null or a string")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise wrong("does not fit 64 bits", "give a smaller number")
    if isinstance(value, str) and (len(value) > LONGEST_TEXT or not _is_plain(value)):
        raise wrong(
            f"is longer than {LONGEST_TEXT} characters or holds control characters",
            "give a short plain string",
        )
    return value  # type: ignore[return-value]  # JSON knows no other type


def plain_text(value: object) -> object:
    """For validators: raises where a text holds what cannot be seen."""
    if isinstance(value, str) and not _is_plain(value):
        raise wrong("holds control characters", "remove them")
    return value


Ref = Annotated[str, BeforeValidator(_ref)]
RangeEnd = Annotated[str | dict[str, str], BeforeValidator(_range_end)]
Overrides = dict[Annotated[str, BeforeValidator(_key)], Annotated[Scalar, BeforeValidator(_scalar)]]


class Shape(BaseModel):
    """A body of a request: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CriterionRequest(Shape):
    """Which regression is looked for."""

    model_config = ConfigDict(title="Criterion")

    kind: CriterionKind
    capacity_bytes: Annotated[int, Field(strict=True, gt=0, lt=2**63)] | None = Field(
        default=None, description="Bytes of one device (out_of_memory); the profile's where not given."
    )
    threshold: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Bytes (peak_memory), or useful tokens a second (throughput)."
    )
    signature: Annotated[str, Field(max_length=LONGEST_TEXT), BeforeValidator(plain_text)] = Field(
        default="", description="Which failure (crash); empty: the one that the bad end shows."
    )


class BudgetRequest(Shape):
    """What may be spent. The best answer so far is given when one of them is used up."""

    model_config = ConfigDict(title="Budget")

    trials: Annotated[int, Field(strict=True, ge=2, le=MOST_TRIALS)] = Budget.trials
    gpu_hours: Annotated[float, Field(gt=0)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None


class BisectionRequest(Shape):
    """A regression, told by two commits: one that was good and a later one that is bad."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "repository": "megatron-bridge",
                    "profile": "qwen3-vl-30b-a3b-sft-8gpu",
                    "good": "v0.3.0",
                    "bad": "main",
                    "overrides": {"train.micro_batch_size": 1},
                    "criterion": {"kind": "out_of_memory", "capacity_bytes": 85899345920},
                    "budget": {"trials": 60, "gpu_hours": 40, "seconds": 28800},
                    "parallel": 4,
                    "confidence": 0.99,
                    "preview": True,
                },
                {
                    "profile": "qwen3-vl-30b-a3b-sft-8gpu",
                    "good": {"megatron-bridge": "3f2a91c", "megatron-lm": "core_r0.16.0"},
                    "bad": {"megatron-bridge": "main", "megatron-lm": "main"},
                },
            ]
        }
    )

    repository: Name | None = Field(
        default=None, description="A registered repository; the profile's where not given."
    )
    profile: Name = Field(description="A registered profile: GET /v1/profiles.")
    good: RangeEnd = Field(description="A ref that is good: branch, tag or hash, or {repository: ref}.")
    bad: RangeEnd = Field(description="A later ref that is bad, in the same form.")
    overrides: Overrides = Field(
        default={},
        max_length=MOST_OVERRIDES,
        description="Configuration keys of the training job to change in every trial.",
    )
    criterion: CriterionRequest | None = Field(
        default=None, description="What counts as bad; the profile's criterion where not given."
    )
    budget: BudgetRequest = BudgetRequest()
    parallel: Annotated[int, Field(strict=True, ge=1, le=64)] | None = Field(
        default=None, description="Trials at once; where not given, one for each worker of the pool."
    )
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        default=BisectionSpec.confidence, description="Posterior at which a commit may be named."
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = BisectionSpec.seed
    preview: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="Make a plan only; it starts when confirmed."
    )
    reuse: Annotated[bool, Field(strict=True)] = Field(
        default=True,
        description="Take over what other bisections measured of the same states; it costs no run.",
    )
    widen: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="If the good end fails as well, go back to an older one."
    )
    prove: Annotated[int, Field(strict=True, ge=0, le=MOST_PROOFS)] = Field(
        default=0,
        description="Try so many of the best remedies at the culprit, one trial each, beyond the budget.",
    )


def normalise(request: BisectionRequest, catalogue: Catalogue) -> tuple[dict[str, Any], Profile]:
    """The request as it is stored, and the profile that it names. Raises Problem.

    In it every default is filled in, an end that names one repository is a plain ref, and the
    criterion is whole.
    """
    profile = _registered(request, catalogue)
    errors: list[FieldError] = []
    ends = {
        "good": whole_end(request.good, "good", profile.repository, catalogue, errors),
        "bad": whole_end(request.bad, "bad", profile.repository, catalogue, errors),
    }
    if ends["good"] == ends["bad"] and not errors:
        errors.append(
            FieldError(
                field="bad",
                message=f"is the same ref as good ({end_words(ends['good'])})",
                repair="name a good commit and a later bad one",
            )
        )
    criterion = whole_criterion(request.criterion, profile, errors)
    if errors or criterion is None:
        raise invalid(errors)
    return {
        "version": VERSION,
        "repository": profile.repository,
        "profile": profile.name,
        **ends,
        "overrides": dict(request.overrides),
        "criterion": criterion.to_json(),
        "budget": request.budget.model_dump(),
        "parallel": request.parallel,
        "confidence": request.confidence,
        "seed": request.seed,
        "preview": request.preview,
        "widen": request.widen,
        "reuse": request.reuse,
        "prove": request.prove,
    }, profile


def invalid(errors: list[FieldError]) -> Problem:
    detail = "; ".join(f"{error.field}: {error.message}, {error.repair}" for error in errors) + "."
    return Problem(problems.INVALID_REQUEST, detail, errors=errors)


def _registered(request: BisectionRequest, catalogue: Catalogue) -> Profile:
    errors: list[FieldError] = []
    profile: Profile | None = None
    try:
        profile = catalogue.profile(request.profile)
    except NotRegistered as error:
        errors.append(not_registered("profile", error))
    wanted = request.repository or (profile.repository if profile else None)
    try:
        if wanted:
            catalogue.repository(wanted)
    except NotRegistered as error:
        errors.append(not_registered("repository", error))
    if profile and not errors and profile.repository != wanted:
        errors.append(
            FieldError(
                field="repository",
                message=f"is {wanted!r}, but profile {profile.name!r} is of {profile.repository!r}",
                repair=f"name {profile.repository!r}, or a profile of {wanted!r}",
            )
        )
        raise invalid(errors)
    if errors or profile is None:
        detail = "; ".join(f"{error.field}: {error.message}" for error in errors) + "."
        raise Problem(problems.NOT_REGISTERED, detail, errors=errors)
    return profile


def not_registered(field: str, error: NotRegistered) -> FieldError:
    return FieldError(
        field=field, message=str(error), repair="use one of these, or ask the operator to add it"
    )


def whole_end(
    end: str | Mapping[str, str],
    field: str,
    repository: str,
    catalogue: Catalogue,
    errors: list[FieldError],
) -> str | dict[str, str] | None:
    """A plain ref, or a ref of the repository and of what it pins."""
    if isinstance(end, str):
        return end
    if set(end) == {repository}:
        return end[repository]
    pinned = list(catalogue.pins_of(repository).values())
    known = {repository, *(name for name in pinned if pinned.count(name) == 1)}
    strangers = sorted(set(end) - known)
    if not strangers and repository in end:
        return {name: end[name] for name in sorted(end)}
    message = (
        f"names {', '.join(map(repr, strangers))[:200]}, which {repository!r} does not pin at one path"
        if strangers
        else f"does not name {repository!r}"
    )
    errors.append(
        FieldError(
            field=field,
            message=message,
            repair=f"name {repository!r}; with it you may name: "
            f"{', '.join(sorted(known - {repository})) or 'nothing'}",
        )
    )
    return None


def whole_criterion(
    wanted: CriterionRequest | None, profile: Profile, errors: list[FieldError]
) -> Criterion | None:
    if wanted is None:
        default = profile.default_criterion()
        if default is None:
            errors.append(
                FieldError(
                    field="criterion",
                    message=f"is missing, and profile {profile.name!r} has no default",
                    repair="give a criterion, for example {'kind': 'out_of_memory'}",
                )
            )
        return _measurable(default, profile, errors) if default else None
    values = wanted.model_dump()
    if wanted.kind is CriterionKind.OUT_OF_MEMORY:
        values["capacity_bytes"] = wanted.capacity_bytes or profile.capacity_bytes
    try:
        return _measurable(Criterion(**values), profile, errors)
    except ValueError as error:
        missing = "capacity_bytes" if wanted.kind is CriterionKind.OUT_OF_MEMORY else "threshold"
        errors.append(FieldError(field=f"criterion.{missing}", message=str(error), repair=f"give {missing}"))
        return None


def _measurable(criterion: Criterion, profile: Profile, errors: list[FieldError]) -> Criterion | None:
    """The criterion, where this profile's runs can be judged by it."""
    refusal = profile.refuses(criterion)
    if not refusal:
        return criterion
    errors.append(
        FieldError(
            field="criterion.kind",
            message=refusal,
            repair="name a profile that trains on real data, and is no dry run"
            if criterion.kind is CriterionKind.THROUGHPUT
            else "name another kind of criterion, or use `firstbad run`",
        )
    )
    return None
