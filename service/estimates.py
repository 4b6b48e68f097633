"""REST: the memory model's answers about a configuration. Nothing is stored and no GPU is asked."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from memory_models.answers import advice_answer, comparison_answer, estimate_answer, remedies_answer
from memory_models.cards import card_named
from memory_models.configurations import read_configuration
from memory_models.distributions import Distribution, Unknowns
from memory_models.job import Card
from memory_models.reading import Reading
from memory_models.shapes import ImageLoad
from service import problems
from service.access import Reader
from service.intake import invalid
from service.problem_responses import document
from service.problems import FieldError

#: Two resolved configurations are some hundred kilobytes.
BODY_BYTES = 1024 * 1024

router = APIRouter(prefix="/v1/estimates", tags=["estimates"], max_body_size=BODY_BYTES)


class Question(StrEnum):
    """What is asked of the memory model."""

    ESTIMATE = "estimate"
    COMPARISON = "comparison"
    REMEDIES = "remedies"
    ADVICE = "advice"


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ImagesRequest(_Shape):
    """What one sample brings in images."""

    model_config = ConfigDict(title="Images")

    patches: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = Field(
        description="Patches of all images of a sample, before merging: 1024 x 1024 pixels are 4096."
    )
    images: Annotated[int, Field(strict=True, ge=0, lt=2**20)] = 1


class ConfigurationRequest(_Shape):
    """A configuration, and what it does not say itself."""

    model_config = ConfigDict(title="Configuration")

    config: dict[str, Any] = Field(
        description="Megatron Bridge's resolved configuration, Megatron-LM's arguments by destination, or a "
        "Hugging Face config.json."
    )
    world_size: Annotated[int, Field(strict=True, ge=1, lt=2**20)] | None = Field(
        default=None, description="GPUs of the whole job."
    )
    images: ImagesRequest | None = Field(
        default=None, description="The data set's own bounds where not given."
    )
    overrides: dict[str, Any] = Field(
        default={}, description="Keys to change first; a Hugging Face model needs its layout and batch here."
    )
    upstream: dict[str, str] = Field(
        default={},
        description="Release or day of the code: {'megatron-bridge': '0.3.1', 'megatron-lm': '2026-06-01'}; "
        "the newest behaviour where not given.",
    )


class UnknownsRequest(_Shape):
    """What the data may bring, as value -> weight; it widens the band of an estimate."""

    model_config = ConfigDict(title="Unknowns")

    imbalance: dict[float, float] | None = Field(
        default=None, max_length=1000, description="Routed rows of a rank over the balanced number."
    )
    patches: dict[float, float] | None = Field(
        default=None, max_length=1000, description="Patches of one sample."
    )


class EstimateRequest(ConfigurationRequest):
    """A question about a configuration."""

    model_config = ConfigDict(
        title="EstimateRequest",
        json_schema_extra={
            "examples": [
                {
                    "question": "estimate",
                    "config": {
                        "num_layers": 32,
                        "hidden_size": 4096,
                        "num_attention_heads": 32,
                        "seq_length": 4096,
                        "vocab_size": 32000,
                        "micro_batch_size": 1,
                        "global_batch_size": 64,
                        "bf16": True,
                        "swiglu": True,
                        "use_distributed_optimizer": True,
                    },
                    "world_size": 8,
                    "capacity_bytes": 85899345920,
                }
            ]
        },
    )

    question: Question = Question.ESTIMATE
    card: str = Field(default="", max_length=32, description="Name of a card, such as h100.")
    capacity_bytes: Annotated[int, Field(strict=True, gt=0, lt=2**63)] | None = Field(
        default=None,
        description="Memory of one card; the card's where not given. Remedies and advice need it.",
    )
    unknowns: UnknownsRequest = UnknownsRequest()
    against: ConfigurationRequest | None = Field(
        default=None, description="The second configuration of a comparison; the first is the good one."
    )


@router.post(
    "",
    operation_id="estimate",
    summary="Ask the memory model",
    responses={
        200: {
            "description": "The answer (docs/reference/memory_model.md). `notes` tells what was assumed, "
            "`ignored` the keys that are not followed.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        **document(
            problems.MALFORMED_BODY,
            problems.UNAUTHENTICATED,
            problems.FORBIDDEN,
            problems.INVALID_REQUEST,
        ),
    },
)
def ask(_caller: Reader, wanted: EstimateRequest) -> dict[str, Any]:
    """How many bytes, of what, on which rank and when; what explains a difference; what to change.

    Components and categories are those of a report, so that an estimate and a measurement
    can be subtracted. Times in remedies are estimates.
    """
    errors: list[FieldError] = []
    generation, capacity = _card(wanted, errors)
    reading = _read(wanted, "config", generation, errors)
    unknowns = _unknowns(wanted.unknowns, errors)
    if reading is not None:
        reading = replace(reading, job=replace(reading.job, unknowns=unknowns))
    other = _second(wanted, generation, errors) if wanted.question is Question.COMPARISON else None
    if wanted.question in (Question.REMEDIES, Question.ADVICE) and capacity is None:
        repair = "give the memory of one card in bytes, or name the card"
        errors.append(FieldError(field="capacity_bytes", message="is missing and needed here", repair=repair))
    if errors or reading is None:
        raise invalid(errors)
    try:
        if wanted.question is Question.COMPARISON and other is not None:
            return comparison_answer(reading, other)
        if wanted.question is Question.REMEDIES and capacity is not None:
            return remedies_answer(reading, capacity)
        if wanted.question is Question.ADVICE and capacity is not None:
            return advice_answer(reading, capacity)
        return estimate_answer(reading, capacity)
    except ValueError as error:  # sizes that a rank cannot hold, found only when it is laid out
        raise invalid([_unusable("config", error)]) from None


def _card(wanted: EstimateRequest, errors: list[FieldError]) -> tuple[Card, int | None]:
    """Its generation, and the memory to fit into."""
    if not wanted.card:
        return Card.HOPPER, wanted.capacity_bytes
    try:
        card = card_named(wanted.card)
    except ValueError as error:
        errors.append(FieldError(field="card", message=str(error), repair="or give capacity_bytes alone"))
        return Card.HOPPER, wanted.capacity_bytes
    return card.generation, wanted.capacity_bytes or card.capacity_bytes


def _unknowns(wanted: UnknownsRequest, errors: list[FieldError]) -> Unknowns:
    found: dict[str, Distribution | None] = {}
    for name, held in (("imbalance", wanted.imbalance), ("patches", wanted.patches)):
        try:
            found[name] = Distribution.of(held) if held is not None else None
        except ValueError as error:
            repair = "give value: weight pairs, such as {'1.0': 5, '1.2': 4}"
            errors.append(FieldError(field=f"unknowns.{name}", message=str(error), repair=repair))
    return Unknowns(**found)


def _second(wanted: EstimateRequest, card: Card, errors: list[FieldError]) -> Reading | None:
    if wanted.against is None:
        repair = "give the second configuration as {'config': {...}, 'world_size': N}"
        errors.append(
            FieldError(field="against", message="is missing, and a comparison needs it", repair=repair)
        )
        return None
    return _read(wanted.against, "against.config", card, errors)


def _read(wanted: ConfigurationRequest, field: str, card: Card, errors: list[FieldError]) -> Reading | None:
    images = wanted.images
    try:
        return read_configuration(
            wanted.config,
            world_size=wanted.world_size,
            images=ImageLoad(patches=images.patches, images=images.images) if images else None,
            overrides=wanted.overrides,
            versions=wanted.upstream,
            card=card,
        )
    except ValueError as error:
        errors.append(_unusable(field, error))
        return None


def _unusable(field: str, error: ValueError) -> FieldError:
    return FieldError(
        field=field, message=str(error)[:500], repair="mend the configuration or override the key"
    )
