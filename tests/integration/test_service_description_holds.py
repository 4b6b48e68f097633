"""The OpenAPI description against the running application: its examples, and schemathesis over all of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bisection.adapters.storage.tokens import Scope
from service.application import create_app
from service.settings import ServiceSettings
from tests.integration.test_service_derived import ended, held
from tests.integration.test_service_live import serve
from tests.unit.service.scene import ServiceScene

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as scene:
        scene.token = scene.tokens[Scope.ADMIN]
        scene.client = scene.client_with(scene.token)
        yield scene


def standing(scene: ServiceScene, wanted: str) -> str:
    """Id of a bisection that stands there."""
    match wanted:
        case "ended":
            return ended(scene)
        case "held":
            return held(scene)
        case "resolving":
            return scene.create()
    bisection_id = scene.create()
    scene.resolve(bisection_id, preview=wanted == "planned")
    return bisection_id


# --- examples -----------------------------------------------------------------------------------------

#: Where a bisection has to stand for an operation on it.
NEEDED = {"approveBisection": "held", "refuseBisection": "held", "proveRemedies": "running"}


def bodies(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], list[Any]]]:
    """Path, method, operation and the examples of its body."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is None:
                continue
            name = content["schema"].get("$ref", "").rpartition("/")[2]
            schema = description["components"]["schemas"].get(name, content["schema"])
            yield path, method, operation, schema.get("examples", [])


def test_every_body_of_the_description_has_examples_that_run(scene: ServiceScene) -> None:
    description = scene.anonymous.get("/openapi.json").json()
    ran = 0
    for path, method, operation, examples in bodies(description):
        if "security" not in operation:
            continue  # a signed delivery: nobody writes one by hand
        name = operation["operationId"]
        assert examples, f"{name} has a body without an example"
        for example in examples:
            bisection_id = standing(scene, NEEDED.get(name, "ended")) if "{bisection_id}" in path else ""
            answer = scene.client.request(method, path.format(bisection_id=bisection_id), json=example)
            assert answer.status_code < 300, f"{name} with {example}: {answer.text}"
            ran += 1
    assert ran > 10


# --- schemathesis -------------------------------------------------------------------------------------


def unlimited(scene: ServiceScene) -> FastAPI:
    """The application of the scene, for a caller that asks as fast as it can."""
    parts = scene.app.state.parts
    return create_app(
        database=parts.database,
        queue=parts.queue,
        catalogue=parts.catalogue,
        settings=ServiceSettings(version="1.2.3", requests_per_second=0, event_poll_seconds=0.02),
    )


@pytest.mark.parametrize("examples", [pytest.param(2), pytest.param(300, marks=pytest.mark.long)])
def test_no_operation_fails_or_answers_what_it_does_not_document(scene: ServiceScene, examples: int) -> None:
    scene.app = unlimited(scene)
    ids = [standing(scene, where) for where in ("ended", "held", "planned", "running", "resolving")]
    chosen = random.Random(7)
    with serve(scene) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
        # What deletes comes last, so that there is something for the others to find.
        for operation in sorted(operations, key=lambda one: one.method.upper() == "DELETE"):
            # The stream of events of one that goes on has no end.
            known = ids[:1] if operation.path.endswith("/events") else ids
            for mode in GenerationMode:
                _try(operation.as_strategy(generation_mode=mode), known, chosen, url, scene.token, examples)


def _try(
    strategy: SearchStrategy[Any], ids: list[str], chosen: random.Random, url: str, token: str, examples: int
) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def attempt(case: Any) -> None:
        if "bisection_id" in (case.path_parameters or {}) and (len(ids) == 1 or chosen.random() < 0.8):
            case.path_parameters["bisection_id"] = chosen.choice(ids)
        response = case.call(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60)
        case.validate_response(response, checks=CHECKS)

    with suppress(Unsatisfiable):  # nothing in it can be wrong
        attempt()
