"""The OpenAPI description: whole, readable, and true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.problems import KINDS
from tests.unit.service.scene import ServiceScene


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    with ServiceScene(tmp_path_factory.mktemp("description")) as scene:
        yield scene.anonymous.get("/openapi.json").json()


def operations(description: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_operation_has_a_name_a_summary_a_text_and_a_tag_that_is_explained(
    description: dict[str, Any],
) -> None:
    explained = {tag["name"] for tag in description["tags"]}
    names = [operation["operationId"] for _, operation in operations(description)]
    assert len(names) == len(set(names))
    for name, operation in operations(description):
        assert operation["summary"], name
        assert operation["description"], name
        assert set(operation["tags"]) <= explained, name


def test_every_error_is_a_problem_with_an_example(description: dict[str, Any]) -> None:
    for name, operation in operations(description):
        for status, response in operation["responses"].items():
            if int(status) < 400:
                continue
            content = response["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}, name
            for kind, example in content["examples"].items():
                assert example["value"]["status"] == KINDS[kind].status == int(status), name


def test_every_operation_but_health_and_the_webhook_needs_a_token(description: dict[str, Any]) -> None:
    open_ones = {name for name, operation in operations(description) if not operation.get("security")}
    signed = {"POST /v1/webhooks/github", "POST /v1/webhooks/ci/{repository}"}
    assert open_ones == {"GET /healthz", "GET /readyz"} | signed


def test_every_reference_leads_somewhere(description: dict[str, Any]) -> None:
    def references(node: object) -> Iterator[str]:
        if isinstance(node, dict):
            for key, value in node.items():
                if key == "$ref":
                    yield value
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    for reference in references(description):
        assert reference.removeprefix("#/components/schemas/") in description["components"]["schemas"]


def test_the_reference_for_people_names_every_operation(description: dict[str, Any]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "api.md").read_text()
    for name, _ in operations(description):
        assert f"`{name}`" in text, name
    for kind in KINDS:
        assert f"`{kind}`" in text, kind
