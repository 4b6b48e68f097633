"""POST /v1/estimates: the memory model behind the API, for those who may read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bisection.adapters.storage.tokens import Scope
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from tests.unit.service.scene import ServiceScene

GIB = 2**30


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path_factory.mktemp("estimates")) as scene:
        yield scene


def ask(scene: ServiceScene, **fields: Any) -> Any:
    body = {"config": qwen_recipe(), "world_size": 32} | fields
    return scene.client_with(scene.tokens[Scope.READ]).post("/v1/estimates", json=body)


def test_an_estimate_adds_up_and_says_whether_it_fits(scene: ServiceScene) -> None:
    row = ask(scene, capacity_bytes=80 * GIB, images={"patches": 4096}).json()
    worst = row["ranks"][row["worst_stage"]]
    assert sum(part["bytes"] for part in worst["parts"]) == worst["allocated_bytes"]
    assert sum(cell["bytes"] for cell in worst["breakdown"]) == worst["allocated_bytes"]
    assert row["headroom_bytes"] == 80 * GIB - worst["device_bytes"]
    assert row["verdict"] in ("fits", "may fit", "does not fit")
    assert row["ignored"] == []


def test_an_uneven_router_widens_the_band(scene: ServiceScene) -> None:
    plain, wide = (
        ask(scene, unknowns=unknowns).json()["ranks"][0]
        for unknowns in ({}, {"imbalance": {"1.0": 5, "2.0": 1}})
    )
    assert wide["high_bytes"] > plain["high_bytes"]
    assert wide["allocated_bytes"] == plain["allocated_bytes"]


def test_a_comparison_explains_its_delta_by_keys(scene: ServiceScene) -> None:
    bad = {"config": qwen_recipe(train__micro_batch_size=2), "world_size": 32}
    row = ask(scene, question="comparison", against=bad).json()
    assert [key["key"] for key in row["keys"]] == ["train.micro_batch_size"]
    assert row["delta_bytes"] == sum(cell["bytes"] for cell in row["delta"]) > 0


def test_remedies_and_advice_take_the_memory_of_a_card(scene: ServiceScene) -> None:
    remedies = ask(scene, question="remedies", card="h100", world_size=8).json()
    assert remedies["capacity_bytes"] == 79 * GIB
    for remedy in remedies["remedies"]:
        assert remedy["saving_bytes"] == remedies["device_bytes"] - remedy["estimate_bytes"]
    steps = ask(scene, question="advice", card="gb200", world_size=8).json()["steps"]
    assert any("HybridEP" in step["title"] for step in steps)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"config": {"hello": 1}}, "config"),
        ({"world_size": None}, "config"),
        ({"world_size": 7}, "config"),
        ({"config": qwen_recipe(model__num_layers=10**9)}, "config"),
        ({"config": qwen_recipe(model__vision_config={"depth": [], "num_position_embeddings": 1})}, "config"),
        ({"upstream": {"megatron-bridge": "main"}}, "config"),
        ({"card": "z9000"}, "card"),
        ({"unknowns": {"imbalance": {"1.0": 0}}}, "unknowns.imbalance"),
        ({"question": "remedies"}, "capacity_bytes"),
        ({"question": "comparison"}, "against"),
        ({"question": "comparison", "against": {"config": {}, "world_size": 8}}, "against.config"),
        ({"capacity_bytes": 0}, "capacity_bytes"),
        ({"world_sise": 8}, "world_sise"),
    ],
)
def test_what_cannot_be_used_is_a_problem_that_names_the_field(
    scene: ServiceScene, fields: dict[str, Any], field: str
) -> None:
    answer = ask(scene, **fields)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert field in [error["field"] for error in answer.json()["errors"]]


def test_an_infinite_number_is_refused(scene: ServiceScene) -> None:
    """JSON has no infinity, but Python's reader takes one: it must not end as a fault of the service."""
    body = '{"config": {"model": {"num_layers": Infinity}}, "world_size": 8}'
    answer = scene.client.post("/v1/estimates", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text


def test_a_token_that_may_read_is_needed(scene: ServiceScene) -> None:
    assert scene.anonymous.post("/v1/estimates", json={}).status_code == 401
    assert scene.client_with(scene.tokens[Scope.WRITE]).post("/v1/estimates", json={}).status_code == 403


def test_a_configuration_may_be_larger_than_a_bisection_but_not_endless(scene: ServiceScene) -> None:
    padding = {"notes": "x" * 300_000}
    assert ask(scene, config=qwen_recipe() | padding).status_code == 200
    assert ask(scene, config=qwen_recipe() | {"notes": "x" * 1_200_000}).status_code == 413
