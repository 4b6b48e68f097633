"""The probe on real Megatron Bridge training: a tiny Qwen3-VL-MoE on a photograph, on a CPU.

The job is `probe_job/train.py`. Expected bytes come from the architecture and
the batch alone, never from an earlier measurement. Needs an interpreter with
Megatron Bridge in FIRSTBAD_TEST_MEGATRON_PYTHON; each run takes about a
quarter of a minute and is made once.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).parents[2] / "workers" / "probe"
JOB = Path(__file__).parent / "probe_job" / "train.py"

EXPANDED = "model.expert_model_parallel_size=2"
HALF_PRECISION = (
    "job.bf16=1",
    "optimizer.use_distributed_optimizer=True",
    "ddp.use_distributed_optimizer=True",
)
RECOMPUTED = (
    "model.recompute_granularity=selective",
    "model.recompute_modules=['moe', 'core_attn']",
)

# The architecture of the job.
LAYERS, EXPERTS, TOP_K, HIDDEN, INNER, VOCABULARY = 4, 8, 2, 64, 128, 512
TOKENS = 384  #: the conversation of about 300 tokens, padded to a multiple of 128


@dataclass(frozen=True)
class Run:
    """One finished job: how its ranks ended and what the probe wrote."""

    exit_codes: tuple[int, ...]
    records: tuple[dict[str, Any], ...]
    configuration: dict[str, Any]
    output: str

    @property
    def record(self) -> dict[str, Any]:
        return self.records[0]

    def cells(self, rank: int = 0) -> dict[tuple[str, str], int]:
        breakdown = self.records[rank]["peak"]["breakdown"]
        return {(row["component"], row["category"]): row["bytes"] for row in breakdown}


Train = Callable[..., Run]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run the job with these arguments, once."""
    python = os.environ.get("FIRSTBAD_TEST_MEGATRON_PYTHON", "")
    if not python:
        pytest.skip("FIRSTBAD_TEST_MEGATRON_PYTHON names no interpreter with Megatron Bridge")
    runs: dict[Any, Run] = {}

    def run(*arguments: str, ranks: int = 1, again: int = 0, **environment: str) -> Run:
        key = (arguments, ranks, again, tuple(sorted(environment.items())))
        if key not in runs:
            runs[key] = start(python, tmp_path_factory.mktemp("run"), arguments, ranks, environment)
        return runs[key]

    return run


def start(
    python: str, folder: Path, arguments: tuple[str, ...], ranks: int, environment: dict[str, str]
) -> Run:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    processes = []
    for rank in range(ranks):
        log = (folder / f"log-{rank}.txt").open("w")
        processes.append(
            subprocess.Popen(
                [python, "-m", "firstbad_probe", JOB, *arguments],
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(PROBE),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "OMP_NUM_THREADS": "1",
                    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "FIRSTBAD_DEVICE": "cpu",
                    "FIRSTBAD_PROBE_DIRECTORY": str(folder / "probe"),
                    **environment,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        )
        log.close()
    try:
        exit_codes = tuple(process.wait(timeout=300) for process in processes)
    finally:
        for process in processes:
            process.kill()
    probe = folder / "probe"
    configuration = probe / "config.json"
    return Run(
        exit_codes=exit_codes,
        records=tuple(json.loads((probe / f"rank-{rank}.json").read_text()) for rank in range(ranks)),
        configuration=json.loads(configuration.read_text()) if configuration.exists() else {},
        output="".join((folder / f"log-{rank}.txt").read_text()[-4000:] for rank in range(ranks)),
    )


def linear(inputs: int, outputs: int) -> tuple[int, int]:
    return inputs * outputs, outputs


def parameters(inner: int = INNER, experts: int = EXPERTS) -> dict[str, list[int]]:
    """Elements of each parameter tensor by component, from the architecture."""
    vision = [48 * 3 * 2 * 16 * 16, 48, 256 * 48]
    for _ in range(4):
        vision += [48, 48, 48, 48, *linear(48, 144), *linear(48, 48), *linear(48, 96), *linear(96, 48)]
    projector = [48, 48, *linear(192, 192), *linear(192, HIDDEN)]
    for _ in range(2):
        projector += [192, 192, *linear(192, 192), *linear(192, HIDDEN)]
    return {
        "vision": vision,
        "projector": projector,
        "decoder": [HIDDEN, *LAYERS * [HIDDEN, HIDDEN, 16, 16, HIDDEN * 128, HIDDEN * HIDDEN]],
        "experts": LAYERS * [EXPERTS * HIDDEN, *experts * [2 * inner * HIDDEN, inner * HIDDEN]],
        "embedding_and_loss": 2 * [VOCABULARY * HIDDEN],
    }


def rounded_bytes(tensors: list[int], element_bytes: int) -> int:
    """Each tensor an allocation of its own, in multiples of 512 bytes."""
    return sum(-(-count * element_bytes // 512) * 512 for count in tensors)


def without_seconds(record: dict[str, Any]) -> dict[str, Any]:
    steps = [{key: value for key, value in step.items() if key != "seconds"} for step in record["steps"]]
    return {**record, "steps": steps, "time": None}


# --- one rank, single precision


def test_an_unmodified_script_trains_to_the_end(train: Train) -> None:
    run = train()
    assert run.exit_codes == (0,), run.output
    assert (run.record["status"], run.record["error"], run.record["invalid"]) == ("completed", None, [])
    assert [step["step"] for step in run.record["steps"]] == [0, 1, 2]


def test_trainable_parameters_equal_the_architecture(train: Train) -> None:
    expected = {component: sum(tensors) for component, tensors in parameters().items()}
    assert train().record["trainable"] == {**expected, "runtime": 0}


def test_parameter_bytes_equal_the_architecture(train: Train) -> None:
    cells = train().cells()
    # Buffers are kept with the parameters: rotary frequencies, and each router's count of tokens.
    buffers = {"vision": 1, "decoder": 1, "experts": LAYERS}
    for component, tensors in parameters().items():
        expected = rounded_bytes(tensors, 4) + 512 * buffers.get(component, 0)
        assert cells[component, "parameters"] == expected, component


def test_gradient_buffers_hold_four_bytes_a_parameter_and_padding_is_told(train: Train) -> None:
    run = train()
    cells = run.cells()
    for component, tensors in parameters().items():
        assert cells[component, "gradients"] == 4 * sum(tensors), component
    padding = cells["runtime", "gradients"]
    assert f"{padding} bytes of flat buffers are padding and belong to no component" in run.record["notes"]


def test_adam_holds_eight_bytes_a_parameter(train: Train) -> None:
    cells = train().cells()
    for component, tensors in parameters().items():
        assert cells[component, "optimizer_states"] == 2 * rounded_bytes(tensors, 4), component


def test_a_wider_expert_shows_in_the_experts_alone_and_to_the_byte(train: Train) -> None:
    """In backward of the last layer's attention three layers' experts are still kept.

    An expert keeps, for each of top-k rows a token, the input of its activation
    (two halves) and its output: 3 * inner elements.
    """
    narrow, wide = train().cells(), train("job.inner=256").cells()
    rows = TOKENS * TOP_K
    assert {cell: wide[cell] - narrow[cell] for cell in wide if wide[cell] != narrow[cell]} == {
        ("experts", "activations"): 3 * rows * 3 * (256 - 128) * 4,
        ("experts", "parameters"): LAYERS * EXPERTS * 3 * HIDDEN * 128 * 4,
        ("experts", "gradients"): LAYERS * EXPERTS * 3 * HIDDEN * 128 * 4,
        ("experts", "optimizer_states"): 2 * LAYERS * EXPERTS * 3 * HIDDEN * 128 * 4,
    }


def test_the_cells_of_the_peak_sum_to_its_total(train: Train) -> None:
    peak = train().record["peak"]
    assert sum(row["bytes"] for row in peak["breakdown"]) == peak["allocated_bytes"]
    assert peak["allocated_bytes"] == max(step["peak_bytes"] for step in train().record["steps"])
    assert peak["instant"].startswith("language_model.decoder.layers.3.self_attention")
    assert peak["phase"] == "backward"


def test_two_identical_runs_are_equal_to_the_byte(train: Train) -> None:
    assert without_seconds(train().record) == without_seconds(train(again=1).record)


def test_what_is_retained_is_parameters_gradients_states_and_scratch(train: Train) -> None:
    """Core's local attention keeps one matrix of scores; its dispatcher keeps the last routing."""
    run = train()
    cells, steps = run.cells(), run.record["steps"]
    kept = sum(
        size
        for (_, category), size in cells.items()
        if category in ("parameters", "gradients", "optimizer_states")
    )
    scores = 4 * TOKENS * TOKENS * 4
    for step in steps:
        assert 0 <= step["retained_bytes"] - kept - scores < 128 * 1024
    assert [row["step"] for row in run.record["retained"]] == [0, steps[-1]["step"]]
    for row, step in zip(run.record["retained"], (steps[0], steps[-1]), strict=True):
        assert sum(cell["bytes"] for cell in row["breakdown"]) == step["retained_bytes"]


def test_every_phase_has_its_highest_instant_and_the_peak_is_one_of_them(train: Train) -> None:
    record = train().record
    summits = {summit["phase"]: summit for summit in record["summits"]}
    assert set(summits) == {"build", "forward", "backward", "step"}
    assert summits[record["peak"]["phase"]] == record["peak"]
    for summit in summits.values():
        assert sum(cell["bytes"] for cell in summit["breakdown"]) == summit["allocated_bytes"]


def test_the_parts_of_time_sum_to_the_steady_steps(train: Train) -> None:
    record = train().record
    steady = [step["seconds"] for step in record["steps"][1:]]
    assert sum(part["seconds"] for part in record["time"]) == pytest.approx(sum(steady) / len(steady))
    seen = {(part["component"], part["phase"]) for part in record["time"]}
    for activity in ("vision", "projector", "decoder", "experts", "dispatch", "embedding_and_loss"):
        assert {(activity, "forward"), (activity, "backward")} <= seen
    assert {("optimizer", "step"), ("data", "forward")} <= seen


def test_tokens_and_patches_equal_the_batch(train: Train) -> None:
    """A photograph of 512 x 512 has 32 x 32 patches, four to an image token; two conversations a step."""
    for step in train().record["steps"]:
        assert (step["image_tokens"], step["patches"]) == (2 * 256, 2 * 1024)
        assert step["loss_tokens"] > 0
        assert 0 < step["padding_tokens"] < 2 * TOKENS - step["image_tokens"]
        assert (step["tokens"], step["sequences"], step["preparations"]) == (2 * TOKENS, 2, 0)
        assert step["expert_tokens"] == 2 * TOKENS * 2 * 4  # two conversations, top-2, four layers
        assert step["expert_calls"] == 2 * 8 * 4  # of eight experts each
        assert step["expert_tokens"] / step["expert_calls"] <= step["most_expert_tokens"] <= TOKENS
    assert train().record["data"] == {"real": True, "images": 6}


def test_the_resolved_configuration_is_written(train: Train) -> None:
    configuration = train().configuration
    model = configuration["model"]
    assert (model["num_layers"], model["num_moe_experts"], model["moe_ffn_hidden_size"]) == (4, 8, INNER)
    assert model["params_dtype"] == "torch.float32"
    assert model["vision_config"]["depth"] == 4
    assert configuration["train"]["global_batch_size"] == 2
    assert configuration["ddp"]["use_distributed_optimizer"] is False


def test_every_stand_in_is_named_and_counted(train: Train) -> None:
    patches = train().record["patches"]
    for name in (
        "Tensor.cuda",
        "local layers instead of Transformer Engine's",
        "configuration dist.distributed_backend=gloo",
        "random state of the CPU",
    ):
        assert patches[name] > 0
    assert all(count > 0 for count in patches.values())


def test_megatron_was_imported_from_where_it_says(train: Train) -> None:
    imports = train().record["imports"]
    assert "megatron/core" in imports["megatron.core"]
    assert "megatron/bridge" in imports["megatron.bridge"]


# --- other configurations


def test_two_expert_parallel_ranks_share_experts_and_split_states(train: Train) -> None:
    run = train(EXPANDED, "model.moe_token_dispatcher_type=alltoall", *HALF_PRECISION, ranks=2)
    assert run.exit_codes == (0, 0), run.output
    local = parameters(experts=EXPERTS // 2)
    states: dict[str, int] = {}
    for rank in (0, 1):
        cells = run.cells(rank)
        for component, tensors in local.items():
            assert cells[component, "gradients"] == 4 * sum(tensors), component
            states[component] = states.get(component, 0) + cells.get((component, "optimizer_states"), 0)
        assert run.records[rank]["patches"]["gloo all_to_all_single"] > 0
        assert run.records[rank]["data"]["images"] == 3
    # Master, mean and variance: 12 bytes a parameter over both ranks. Shards are rounded one by one.
    whole = {**parameters(), "experts": 2 * local["experts"]}
    router = LAYERS * EXPERTS * HIDDEN  # in the dense buffers, so it is split, not doubled
    for component, tensors in whole.items():
        expected = 12 * (sum(tensors) - (router if component == "experts" else 0))
        assert 0 <= states[component] - expected <= 3 * 512 * (len(tensors) + 1), component


@pytest.mark.long
def test_recompute_keeps_less_of_experts_and_attention(train: Train) -> None:
    kept, recomputed = train().cells(), train(*RECOMPUTED)
    assert recomputed.exit_codes == (0,), recomputed.output
    less = recomputed.cells()
    rows = TOKENS * TOP_K
    saved = kept["experts", "activations"] - less["experts", "activations"]
    assert saved >= 3 * rows * 3 * INNER * 4
    assert less["decoder", "activations"] < kept["decoder", "activations"]
    for component in ("vision", "projector"):
        assert less[component, "activations"] == kept[component, "activations"]


@pytest.mark.long
def test_frozen_parts_have_neither_gradients_nor_states(train: Train) -> None:
    run = train("model.freeze_vision_model=True", "model.freeze_language_model=True")
    trained = {component for component, count in run.record["trainable"].items() if count}
    assert trained == {"projector"}
    owners = {
        component
        for component, category in run.cells()
        if category in ("gradients", "optimizer_states") and component != "runtime"
    }
    assert owners == {"projector"}


# --- refusals and failures


def test_a_capacity_below_the_parameters_refuses_while_the_model_is_built(train: Train) -> None:
    run = train(FIRSTBAD_CAPACITY_BYTES=str(3 * 2**20))
    assert run.exit_codes == (1,)
    assert run.record["status"] == "out_of_memory"
    assert run.record["error"]["type"] == "OutOfMemoryError"
    assert (run.record["oom"]["phase"], run.record["oom"]["component"]) == ("build", "experts")
    assert run.record["steps"] == []


def test_a_capacity_below_the_peak_refuses_in_the_step_and_names_the_component(train: Train) -> None:
    peak = train().record["peak"]["allocated_bytes"]
    run = train(FIRSTBAD_CAPACITY_BYTES=str(peak - 1))
    assert run.exit_codes == (1,)
    record = run.record
    assert record["status"] == "out_of_memory"
    assert (record["oom"]["component"], record["oom"]["phase"]) == ("decoder", "backward")
    assert record["oom"]["allocated_bytes"] + record["oom"]["requested_bytes"] == peak
    assert len(record["steps"]) == 1
    assert "CUDA out of memory" in record["error"]["message"]
    assert record["error"]["frames"][-1].startswith("megatron/core/")
    assert record["invalid"] == []


def test_a_script_that_fails_is_recorded_and_fails(train: Train) -> None:
    run = train("job.fails=the data is gone")
    assert run.exit_codes == (1,)
    error = run.record["error"]
    assert (run.record["status"], error["type"], error["message"]) == (
        "failed",
        "RuntimeError",
        "the data is gone",
    )
    assert error["frames"] == ["train.py:<module>", "train.py:main"]
    assert run.record["peak"] is None


@pytest.mark.long
def test_a_run_that_is_not_what_was_asked_is_invalid_with_every_reason(train: Train) -> None:
    """Full recompute works without images only: Bridge 0.3.1 fails on its list of deepstack features."""
    run = train(
        "dataset.with_images=False",
        "train.train_iters=2",
        "model.recompute_granularity=full",
        "model.recompute_method=uniform",
        "model.recompute_num_layers=1",
        FIRSTBAD_REQUIRE_REAL_DATA="1",
        FIRSTBAD_EXPECTED_IMPORTS='{"megatron.core": "/another/place"}',
    )
    assert run.exit_codes == (0,), run.output
    assert run.record["status"] == "completed"
    few, wrong, unreal = run.record["invalid"]
    assert few == "only 2 of at least 3 steps were taken"
    assert wrong.startswith("megatron.core was imported from ")
    assert wrong.endswith(", not from /another/place")
    assert unreal == "the data is not real: no batch held an image"


@pytest.mark.long
def test_noise_is_not_real_data(train: Train) -> None:
    run = train("dataset.noise=True", "train.train_iters=1", FIRSTBAD_REQUIRE_REAL_DATA="1")
    assert run.record["data"]["real"] is False
    assert any("random noise" in reason for reason in run.record["invalid"])
