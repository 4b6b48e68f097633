"""The demo's training, as it stands at both ends of each scenario, measured by the probe.

Needs an interpreter with the packages of the demo's lock (without nightly-photos)
in FIRSTBAD_TEST_MEGATRON_PYTHON. About half a minute a training run.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firstbad.demo import SCENARIOS, wheels
from firstbad.demo.culprits import NOTHING_REGRESSED_CAPACITY_BYTES, Culprit
from firstbad.demo.decoys import DECOYS, DecoyEdit, DecoyKind
from firstbad.demo.scenarios import templates
from memory_models.breakdown import MIB, Component, MemoryBreakdown

PYTHON = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
PROBE = Path(__file__).parents[2] / "workers" / "probe"
#: Bytes by which a peak must miss the capacity, so that no rounding turns a verdict.
MARGIN_BYTES = 8 * MIB

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON, reason="FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with Megatron"),
]

CULPRITS = [culprit for culprits in SCENARIOS.values() for culprit in culprits]
Measure = Callable[..., dict[str, Any]]


def named(culprit: Culprit) -> str:
    return culprit.edit.name


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_of(culprit: Culprit) -> dict[str, str]:
    tree = templates()
    for edit in culprit.start:
        tree = edit.apply(tree)
    return tree


def decoys(*kinds: DecoyKind) -> list[DecoyEdit]:
    return [decoy for decoy in DECOYS if decoy.kind in kinds]


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Measure:
    """Train a tree for three steps under the probe: the record of rank 0. A tree is trained once."""
    folder = tmp_path_factory.mktemp("nightly")
    wheels(folder / "wheels")
    records: dict[str, dict[str, Any]] = {}

    def installed(lock: str) -> Path:
        (pin,) = (line for line in lock.splitlines() if line.startswith("nightly-photos=="))
        target = folder / pin
        if not target.exists():
            subprocess.run(
                [
                    *(sys.executable, "-m", "zipfile", "-e"),
                    folder / "wheels" / f"nightly_photos-{pin.split('==')[1]}-py3-none-any.whl",
                    target,
                ],
                check=True,
            )
        return target

    def run(tree: dict[str, str], *overrides: str) -> dict[str, Any]:
        key = hashlib.sha256(json.dumps([tree, overrides], sort_keys=True).encode()).hexdigest()[:16]
        if key in records:
            return records[key]
        workspace, output = folder / key, folder / f"{key}-record"
        for path, text in tree.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(text)
        output.mkdir()
        environment = {
            **os.environ,
            "FIRSTBAD_DEVICE": "cpu",
            "FIRSTBAD_PROBE_DIRECTORY": str(output),
            "FIRSTBAD_REQUIRE_REAL_DATA": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "PYTHONPATH": os.pathsep.join([str(PROBE), str(installed(tree["requirements.lock"]))]),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
        }
        finished = subprocess.run(
            [PYTHON, "-m", "firstbad_probe", "train.py", *overrides],
            cwd=workspace,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (output / "rank-0.json").exists(), finished.stderr[-2000:]
        records[key] = json.loads((output / "rank-0.json").read_text())
        return records[key]

    return run


def peak_of(record: dict[str, Any]) -> MemoryBreakdown:
    assert record["status"] == "completed", record["error"]
    assert record["invalid"] == []
    breakdown = MemoryBreakdown.from_json(record["peak"]["breakdown"])
    assert breakdown.total_bytes == record["peak"]["allocated_bytes"]
    return breakdown


@pytest.mark.parametrize("culprit", CULPRITS, ids=named)
def test_a_culprit_crosses_the_capacity_and_most_bytes_go_where_it_says(
    culprit: Culprit, measure: Measure
) -> None:
    good = peak_of(measure(start_of(culprit)))
    bad = peak_of(measure(culprit.edit.apply(start_of(culprit))))
    assert good.total_bytes + MARGIN_BYTES <= culprit.capacity_bytes
    assert bad.total_bytes - MARGIN_BYTES >= culprit.capacity_bytes
    before, after = good.by_component(), bad.by_component()
    growth = {component: after[component] - before[component] for component in Component}
    expected = growth.pop(culprit.component)
    assert expected >= 30 * MIB
    assert max(growth.values()) <= expected / 2


@pytest.mark.parametrize("culprit", CULPRITS, ids=named)
def test_a_vision_decoy_costs_vision_memory_and_stays_under_the_capacity(
    culprit: Culprit, measure: Measure
) -> None:
    start = start_of(culprit)
    good = peak_of(measure(start)).by_component()
    for decoy in decoys(DecoyKind.VISION_MEMORY):
        if culprit.clipped or not decoy.clipped:
            tempting = peak_of(measure(decoy.edit.apply(start)))
            growth = tempting.by_component()[Component.VISION] - good[Component.VISION]
            assert growth >= 5 * MIB, decoy.edit.name
            assert tempting.total_bytes + MARGIN_BYTES <= culprit.capacity_bytes, decoy.edit.name


def test_where_nothing_regressed_no_commit_reaches_the_capacity(measure: Measure) -> None:
    for decoy in decoys(DecoyKind.VISION_MEMORY):
        tempting = peak_of(measure(decoy.edit.apply(templates())))
        assert tempting.total_bytes + MARGIN_BYTES <= NOTHING_REGRESSED_CAPACITY_BYTES


@pytest.mark.parametrize(
    "decoy",
    decoys(DecoyKind.BROKEN_IMPORT, DecoyKind.OTHER_FAILURE),
    ids=lambda decoy: decoy.edit.name,
)
def test_a_failing_decoy_fails_and_not_for_memory(decoy: DecoyEdit, measure: Measure) -> None:
    record = measure(decoy.edit.apply(templates()))
    assert record["status"] == "failed"
    assert record["error"]["type"] in {"ModuleNotFoundError", "SyntaxError", "AssertionError", "IndexError"}


@pytest.mark.parametrize("decoy", decoys(DecoyKind.MOCK_DATA), ids=lambda decoy: decoy.edit.name)
def test_mock_data_trains_but_is_not_what_was_asked(decoy: DecoyEdit, measure: Measure) -> None:
    record = measure(decoy.edit.apply(templates()))
    assert record["status"] == "completed"
    assert record["data"]["real"] is False
    assert record["invalid"] != []


def test_two_runs_of_one_tree_have_the_same_peak(measure: Measure) -> None:
    again = {**templates(), "docs/again.md": "Another key, the same training.\n"}
    assert peak_of(measure(again)) == peak_of(measure(templates()))


def test_a_key_of_the_recipe_can_be_changed_and_a_missing_one_is_named(measure: Measure) -> None:
    smaller = peak_of(measure(templates(), "train.micro_batch_size=1"))
    assert smaller.total_bytes < peak_of(measure(templates())).total_bytes
    record = measure(templates(), "train.micro_batches=1")
    assert record["status"] == "failed"
    assert "no key 'train.micro_batches'" in record["error"]["message"]
