"""Dry runs of real Megatron Bridge code: against real training of the same job, and at full size.

Needs an interpreter with Megatron Bridge in FIRSTBAD_TEST_MEGATRON_PYTHON. Sizes that are expected come
from the architecture, or from a real run made here; never from an earlier dry run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_probe_runs import JOB, PROBE, start

REHEARSED = PROBE / "firstbad_probe" / "dry_run" / "job.py"
CORE_JOB = REHEARSED.with_name("core_job.py")
MODELS = Path(__file__).with_name("models")
GIB = 2**30

#: Qwen3-VL-30B-A3B's own numbers.
HIDDEN, VOCABULARY, EXPERTS, EXPERT_INNER, CHOSEN = 2048, 151936, 128, 768, 8
QUERY_AND_KEYS, HEAD = (32 + 2 * 4) * 128, 128
LAYERS, WORLD, EXPERT_RANKS, SEQUENCE = 4, 64, 8, 4096


@pytest.fixture(scope="module")
def python() -> str:
    named = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not named:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with Megatron Bridge")
    return named


def rehearse(
    python: str,
    folder: Path,
    orders: dict[str, Any],
    *arguments: str,
    job: Path = REHEARSED,
    world: int = WORLD,
    **environment: str,
) -> dict[int, dict[str, Any]]:
    """The records by rank of a dry run of a shipped job."""
    probe = folder / "probe"
    subprocess.run(
        [python, "-m", "firstbad_probe", job, *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(PROBE),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",  # nothing listens, nothing connects
            "FIRSTBAD_DEVICE": "dry_run",
            "FIRSTBAD_DRY_RUN": json.dumps(orders),
            "FIRSTBAD_MINIMUM_STEPS": "2",
            "FIRSTBAD_PROBE_DIRECTORY": str(probe),
            **environment,
        },
        capture_output=True,
        check=False,
        timeout=600,
    )
    records = [json.loads(file.read_text()) for file in probe.glob("rank-*.json")]
    return {record["rank"]: record for record in records}


def cells(record: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(row["component"], row["category"]): row["bytes"] for row in record["peak"]["breakdown"]}


def test_a_dry_run_has_the_bytes_of_the_real_run_component_by_component(python: str, tmp_path: Path) -> None:
    for name in ("real", "dry"):
        (tmp_path / name).mkdir()
    real = start(python, tmp_path / "real", (), 1, {}).record
    steps = real["steps"][-1]
    dry = start(
        python,
        tmp_path / "dry",
        (),
        1,
        {
            "FIRSTBAD_DEVICE": "dry_run",
            "FIRSTBAD_MINIMUM_STEPS": "2",
            "FIRSTBAD_DRY_RUN": json.dumps(
                {"images": [[512, 512]], "sequence_length": steps["tokens"] // steps["sequences"]}
            ),
        },
    ).record
    assert (dry["status"], dry["device"], dry["invalid"]) == ("completed", "dry_run", [])
    assert {step["patches"] for step in dry["steps"]} == {steps["patches"]}
    assert dry["peak"]["instant"] == real["peak"]["instant"]
    assert cells(dry) == cells(real)
    assert [step["peak_bytes"] for step in dry["steps"]] == [step["peak_bytes"] for step in real["steps"][:2]]
    # Neither seconds nor real data are claimed.
    assert dry["time"] == []
    assert {step["seconds"] for step in dry["steps"]} == {0.0}
    assert dry["data"]["real"] is None


@pytest.fixture(scope="module")
def full_size(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Four layers of Qwen3-VL-30B-A3B in a world of 64 GPUs, eight of which share the experts."""
    records = rehearse(
        python,
        tmp_path_factory.mktemp("full"),
        {"images": [[1024, 1024]], "layers": "production"},
        str(MODELS / "qwen3_vl_30b_a3b.json"),
        f"model.num_layers={LAYERS}",
        f"model.expert_model_parallel_size={EXPERT_RANKS}",
    )
    assert records[0]["status"] == "completed", records[0]["error"]
    return records[0]


def test_weights_gradients_and_states_at_full_size_are_those_of_arithmetic(full_size: dict[str, Any]) -> None:
    found = cells(full_size)
    experts = LAYERS * EXPERTS // EXPERT_RANKS * 3 * HIDDEN * EXPERT_INNER
    router = LAYERS * EXPERTS * HIDDEN
    attention = LAYERS * (HIDDEN * QUERY_AND_KEYS + 32 * HEAD * HIDDEN + 2 * HEAD + 2 * HIDDEN) + HIDDEN
    table = VOCABULARY * HIDDEN
    assert full_size["parameters"]["experts"] == experts + router
    assert full_size["parameters"]["decoder"] == attention
    assert full_size["parameters"]["embedding_and_loss"] == 2 * table
    orders_of_chunks = LAYERS * 2 * EXPERTS * 8  # int64: how the dispatcher sorts by expert, and back
    assert found["experts", "parameters"] == 2 * (experts + router) + orders_of_chunks
    assert found["embedding_and_loss", "parameters"] == 2 * 2 * table
    # An accumulating product leaves one bf16 gradient of each weight's shape behind, besides the fp32 buffer.
    expert_shapes = HIDDEN * EXPERT_INNER * (2 + 1)
    assert found["experts", "gradients"] == 4 * (experts + router) + 2 * expert_shapes
    # fp32 masters and two moments of what this rank updates: an eighth of its experts.
    assert found["experts", "optimizer_states"] == 12 * experts // (WORLD // EXPERT_RANKS)


def test_activations_of_the_experts_are_the_rows_times_the_widths(full_size: dict[str, Any]) -> None:
    rows = SEQUENCE * CHOSEN
    kept = 2 * rows * (HIDDEN + 2 * EXPERT_INNER + EXPERT_INNER)  # input, both halves of fc1, fc2's input
    found = cells(full_size)["experts", "activations"]
    assert LAYERS * kept <= found <= 1.1 * LAYERS * kept  # and what the router and the permutation keep
    assert full_size["steps"][-1]["expert_tokens"] == LAYERS * rows


def test_what_stood_in_and_what_is_not_seen_is_in_the_record(full_size: dict[str, Any]) -> None:
    assert full_size["hardware"] == "none: a dry run"
    assert any("stand-ins for Transformer Engine" in name for name in full_size["patches"])
    assert any("flash attention" in what for what in full_size["unseen"])


def test_a_simulated_capacity_refuses_and_names_component_and_phase(python: str, tmp_path: Path) -> None:
    capacity = 12 * GIB
    records = rehearse(
        python,
        tmp_path,
        {"images": [[1024, 1024]], "layers": "production"},
        str(MODELS / "qwen3_vl_30b_a3b.json"),
        f"model.num_layers={LAYERS}",
        f"model.expert_model_parallel_size={EXPERT_RANKS}",
        FIRSTBAD_CAPACITY_BYTES=str(capacity),
    )
    record = records[0]
    assert record["status"] == "out_of_memory"
    refused = record["oom"]
    assert refused["phase"] == "forward"
    assert refused["component"] in ("vision", "decoder", "experts", "embedding_and_loss")
    assert refused["allocated_bytes"] <= capacity < refused["allocated_bytes"] + refused["requested_bytes"]


def test_what_is_recomputed_is_given_back_until_its_backward(python: str, tmp_path: Path) -> None:
    """Megatron Core alone: a microbatch leaves nothing of its recomputation to the next one."""
    layers, hidden, inner, rows = 2, 512, 2048, 4096 * 2
    arguments = {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": inner,
        "num_attention_heads": 8,
        "seq_length": 1024,
        "max_position_embeddings": 1024,
        "micro_batch_size": 4,
        "global_batch_size": 32,
        "bf16": True,
        "swiglu": True,
        "add_bias_linear": False,
        "num_experts": 8,
        "moe_router_topk": 2,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
        "expert_model_parallel_size": 2,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    activations = []
    for name, recompute in (("kept", {}), ("again", {"recompute_granularity": "selective"})):
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "arguments.json"
        file.write_text(json.dumps({**arguments, **recompute, "recompute_modules": ["moe_act"]}))
        record = rehearse(python, folder, {"layers": "production"}, str(file), job=CORE_JOB, world=8)[0]
        assert record["status"] == "completed", record["error"]
        activations.append(cells(record)["experts", "activations"])
    assert activations[0] - activations[1] == layers * rows * inner * 2


@pytest.mark.long
def test_every_pipeline_stage_is_rehearsed_and_fewer_layers_in_flight_need_less(
    python: str, tmp_path: Path
) -> None:
    records = rehearse(
        python,
        tmp_path,
        {"images": [[512, 512]], "layers": "production"},
        str(MODELS / "qwen3_vl_30b_a3b.json"),
        "model.num_layers=8",
        "model.pipeline_model_parallel_size=2",
        f"model.expert_model_parallel_size={EXPERT_RANKS}",
        f"train.global_batch_size={4 * WORLD // 2}",
    )
    assert sorted(records) == [0, WORLD // 2]
    first, last = records[0], records[WORLD // 2]
    assert first["status"] == last["status"] == "completed"
    # One forward, one backward: the first of two stages holds two microbatches, the last one.
    assert cells(first)["experts", "activations"] > 1.9 * cells(last)["experts", "activations"]


def test_an_error_of_upstream_is_named_as_upstreams(python: str, tmp_path: Path) -> None:
    """Bridge 0.3.1 cannot recompute everything with an image: what it says is what the record says."""
    record = rehearse(
        python,
        tmp_path,
        {"images": [[256, 256]]},
        str(MODELS / "qwen3_vl_30b_a3b.json"),
        "model.num_layers=3",
        f"model.expert_model_parallel_size={EXPERT_RANKS}",
        "model.recompute_granularity=full",
        "model.recompute_method=uniform",
        "model.recompute_num_layers=1",
    )[0]
    assert record["status"] == "failed"
    assert "save_for_backward can only save variables" in record["error"]["message"]
    assert any("megatron/core" in frame for frame in record["error"]["frames"])


def test_an_order_that_cannot_be_followed_names_its_field(python: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        [python, "-m", "firstbad_probe", JOB],
        env={
            **os.environ,
            "PYTHONPATH": str(PROBE),
            "FIRSTBAD_DEVICE": "dry_run",
            "FIRSTBAD_DRY_RUN": '{"layers": "fast"}',
            "FIRSTBAD_PROBE_DIRECTORY": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    assert "layers is 'fast': it must be unfused or production" in answer.stderr
    assert "Traceback" not in answer.stderr
