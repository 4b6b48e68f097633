"""The memory commands, as people call them: real configurations, real processes, faults with their repair."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner, Result

from firstbad.command_line import app
from tests.unit.memory_models.bridge_configurations import VISION, qwen_recipe

DATA = Path(__file__).parents[1] / "memory_models" / "data"
TINY = DATA / "qwen3_vl_moe_tiny_bridge_0_3_1.json"


def firstbad(*words: str | Path) -> Result:
    """The command in this process; what it raises, main() says in a sentence (see the last tests)."""
    return CliRunner().invoke(app, list(map(str, words)))


def answer(*words: str | Path) -> Any:
    done = firstbad(*words, "--json")
    assert done.exit_code == 0, done.exception
    return json.loads(done.stdout)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(qwen_recipe()))
    return path


def test_an_estimate_of_a_recorded_configuration_adds_up() -> None:
    row = answer("estimate", TINY, "--gpus", "1", "--images", "256", "--capacity", "1GiB")
    (rank,) = row["ranks"]
    assert sum(part["bytes"] for part in rank["parts"]) == rank["allocated_bytes"]
    assert row["headroom_bytes"] == 2**30 - row["device_bytes"] > 0
    assert row["verdict"] == "fits"
    assert any("gloo" in note for note in row["notes"])


def test_an_estimate_is_shown_with_bars_parts_and_headroom(recipe: Path) -> None:
    done = firstbad("estimate", recipe, "--gpus", "32", "--card", "h100")
    assert done.exit_code == 0, done.exception
    for words in ("Pipeline rank 0 needs most", "On 79.00 GiB", "experts", "routed experts", "█", "GiB"):
        assert words in done.stdout


def test_a_distribution_of_loads_widens_the_band(recipe: Path) -> None:
    plain = answer("estimate", recipe, "--gpus", "32")["ranks"][0]
    loads = ("--router-load", "1.0:5,2.0:1", "--image-load", "196:1,4096:2,16384:1")
    wide = answer("estimate", recipe, "--gpus", "32", *loads)["ranks"][0]
    assert wide["high_bytes"] > plain["high_bytes"]
    assert wide["allocated_bytes"] == plain["allocated_bytes"]


def test_the_picture_of_an_estimate_is_one_svg_with_a_bar_a_rank(recipe: Path, tmp_path: Path) -> None:
    picture = tmp_path / "estimate.svg"
    settings = ("--set", "model.pipeline_model_parallel_size=2")
    done = firstbad("estimate", recipe, "--gpus", "32", "--capacity", "80GiB", "--svg", picture, *settings)
    assert done.exit_code == 0, done.exception
    root = ElementTree.fromstring(picture.read_text())
    tips = [node.text or "" for node in root.iter() if node.tag.endswith("title")]
    assert {tip.split(",")[0] for tip in tips} >= {"rank 0", "rank 1"}
    assert any(tip.startswith("rank 0, experts: ") for tip in tips)


def test_a_comparison_names_the_key_that_explains_the_bytes(recipe: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(qwen_recipe(model__expert_model_parallel_size=4)))
    row = answer("compare", recipe, bad, "--gpus", "32")
    assert [key["key"] for key in row["keys"]] == ["model.expert_model_parallel_size"]
    assert row["delta_bytes"] == row["keys"][0]["delta_bytes"] > 10 * 2**30
    shown = firstbad("compare", recipe, bad, "--gpus", "32").stdout
    assert "model.expert_model_parallel_size" in shown
    assert "+" in shown


def test_the_same_configuration_under_older_code_is_another_layout(tmp_path: Path) -> None:
    path = tmp_path / "unset.yaml"
    keys = {"model__expert_tensor_parallel_size": None, "model__tensor_model_parallel_size": 2}
    path.write_text(yaml.safe_dump(qwen_recipe(**keys)))
    words = ("compare", path, path, "--gpus", "32", "--good-upstream", "megatron-bridge=2026-06-30")
    row = answer(*words)
    assert row["delta_bytes"] > 0
    assert row["keys"][0]["key"] == "model.expert_tensor_parallel_size"


def test_remedies_are_ranked_and_their_savings_are_differences(recipe: Path) -> None:
    row = answer("remedies", recipe, "--gpus", "8", "--capacity", "80GiB")
    for remedy in row["remedies"]:
        assert remedy["saving_bytes"] == row["device_bytes"] - remedy["estimate_bytes"]
    order = [(not remedy["legal"], not remedy["fits"]) for remedy in row["remedies"]]
    assert order == sorted(order)
    shown = firstbad("remedies", recipe, "--gpus", "8", "--capacity", "80GiB").stdout
    assert "cost: " in shown


def test_advice_is_a_numbered_list_of_gated_steps(recipe: Path) -> None:
    row = answer("advise", recipe, "--gpus", "16", "--card", "gb200")
    assert all(step["gate"] and step["reason"] for step in row["steps"])
    assert any("HybridEP" in step["title"] for step in row["steps"])
    shown = firstbad("advise", recipe, "--gpus", "16", "--card", "h100").stdout
    assert "1. " in shown
    assert "before going on: " in shown
    assert "HybridEP" not in shown


def test_a_hugging_face_model_and_a_script_of_arguments_are_read_too(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "python pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 \\\n"
        "  --seq-length 1024 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 8\n"
    )
    assert answer("estimate", script, "--gpus", "8")["device_bytes"] > 2**30
    model = tmp_path / "config.json"
    text = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    vision = VISION | {"out_hidden_size": 512}
    text |= {"vocab_size": 32_000}
    model.write_text(
        json.dumps({"model_type": "qwen3_vl", "text_config": text, "vision_config": vision | {"depth": 4}})
    )
    row = answer("estimate", model, "--gpus", "1", "--set", "model.seq_length=1024", "--images", "448x448")
    assert any("Bridge's recipes" in note for note in row["notes"])


@pytest.mark.parametrize(
    ("words", "repair"),
    [
        (("estimate", "RECIPE"), "give the number (--gpus)"),
        (("estimate", "/nonexistent/recipe.yaml", "--gpus", "8"), "cannot be read"),
        (("estimate", "RECIPE", "--gpus", "8", "--capacity", "lots"), "write 80GiB"),
        (("estimate", "RECIPE", "--gpus", "8", "--capacity", "80"), "write a unit, like 80GiB"),
        (("estimate", "RECIPE", "--gpus", "8", "--card", "z9000"), "choose one of"),
        (("estimate", "RECIPE", "--gpus", "8", "--images", "big"), "write patches"),
        (("estimate", "RECIPE", "--gpus", "7"), "do not divide"),
        (("estimate", "RECIPE", "--gpus", "8", "--router-load", "much"), "is no distribution"),
        (("estimate", "RECIPE", "--gpus", "8", "--set", "nonsense"), "is not KEY=VALUE"),
        (("estimate", "RECIPE", "--gpus", "8", "--upstream", "megatron-bridge=main"), "neither a release"),
        (("remedies", "RECIPE", "--gpus", "8"), "--capacity 80GiB, or --card h100"),
        (("estimate", "BROKEN", "--gpus", "8"), "neither YAML nor JSON"),
    ],
)
def test_a_fault_is_one_sentence_with_its_repair(
    words: tuple[str, ...], repair: str, recipe: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("model: [unclosed")
    places = {"RECIPE": str(recipe), "BROKEN": str(broken)}
    done = firstbad(*(places.get(word, word) for word in words))
    assert isinstance(done.exception, ValueError)
    assert done.stdout == ""
    assert repair in str(done.exception)
    assert "\n" not in str(done.exception)


def test_the_installed_command_prints_an_answer_or_one_red_sentence(recipe: Path) -> None:
    command = [sys.executable, "-m", "firstbad", "estimate", str(recipe)]
    told = subprocess.run([*command, "--gpus", "32", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["question"] == "estimate"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("firstbad: ")
    assert "Traceback" not in done.stderr
