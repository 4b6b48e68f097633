"""What a form sends: a few short fields, and models made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends
from pydantic import BaseModel, ValidationError

from service import problems
from service.intake import invalid
from service.parts import body_of
from service.problems import Problem, field_errors

_MOST_FIELDS = 30
_Model = TypeVar("_Model", bound=BaseModel)


def fields_of(body: Annotated[bytes, Depends(body_of)]) -> dict[str, str]:
    """A dependency: the fields of a form, stripped; of one that comes twice, the first. Raises Problem."""
    try:
        form = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Problem(
            problems.INVALID_REQUEST,
            f"The form has more than {_MOST_FIELDS} fields.",
            repair="Send the fields of the page only.",
        ) from None
    return {name: values[0].strip() for name, values in form.items()}


Fields = Annotated[dict[str, str], Depends(fields_of)]


def model_of(model: type[_Model], values: Mapping[str, Any]) -> _Model:
    """The body of a REST call, of a form's values. Raises Problem."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(field_errors([dict(one) for one in error.errors()])) from None
