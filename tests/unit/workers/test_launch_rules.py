"""What a profile's commands must say for trials to be honest, each rule broken once."""

from __future__ import annotations

import pytest

from bisection.adapters.profiles import Profile
from workers.launch_rules import broken_rules

HONEST = (
    "{python}", "-m", "firstbad_probe", "scripts/training/run_recipe.py", "--x",
    "train.train_iters={steps}", "train.global_batch_size=32",
    "checkpoint.load=null", "checkpoint.save={trial}/checkpoints",
)  # fmt: skip


PINNED = {
    "HF_HOME": "/srv/hf", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0",
    "NCCL_NVLS_ENABLE": "0",
}  # fmt: skip


def broken(*command: str, env: dict[str, str] = PINNED, **fields: object) -> list[str]:
    profile = Profile.model_validate(
        {
            "name": "tiny",
            "repository": "nightly",
            "environment": {"kind": "interpreter", "python": "/env/bin/python"},
            "launch": [{"name": "2026", "command": command, "env": env}, {"refused": "too new"}],
            "device": "cuda",
            "gpus": 1,
            "places": {"weights": "/srv/weights"},
            **fields,
        }
    )
    return list(broken_rules(profile))


def test_an_honest_command_breaks_none() -> None:
    assert broken(*HONEST, "checkpoint.pretrained_checkpoint={weights}") == []


@pytest.mark.parametrize(
    ("taken", "given", "says"),
    [
        ("firstbad_probe", "other", "does not start the probe"),
        ("train.train_iters={steps}", "train.train_iters=5", "does not pass {steps} on"),
        ("train.global_batch_size=32", "train.micro_batch_size=1", "pin it by train.global_batch_size"),
        ("checkpoint.load=null", "checkpoint.load=/srv/run", "could be resumed"),
        ("checkpoint.load=null", "x=1", "could be resumed"),
        ("checkpoint.save={trial}/checkpoints", "checkpoint.save=/srv/run", "saved outside of the trial"),
        ("--x", "--x={chekpoint}", "{chekpoint} is neither a word"),
    ],
)
def test_each_rule_is_told_with_its_era_and_repair(taken: str, given: str, says: str) -> None:
    (line,) = broken(*(given if word == taken else word for word in HONEST))
    assert line.startswith("launch '2026': ")
    assert says in line


def test_a_script_that_is_no_runner_of_megatron_bridge_is_asked_for_the_probe_and_the_steps_alone() -> None:
    assert broken("{python}", "-m", "firstbad_probe", "train.py", "--steps", "{steps}") == []


@pytest.mark.parametrize("word", ["model.cuda_graph_impl=local", "+model.enable_cuda_graph=true"])
def test_graphs_need_the_steps_that_capture_them(word: str) -> None:
    (line,) = broken(*HONEST, word, steps=5)
    assert line.startswith("launch '2026': 5 steps are too few")
    assert "set `steps` to 6 or more" in line
    assert broken(*HONEST, word, steps=6) == []
    assert "to 14 or more" in broken(*HONEST, word, "model.cuda_graph_warmup_steps=11", steps=6)[0]


def test_no_graphs_are_none() -> None:
    assert broken(*HONEST, "model.cuda_graph_impl=none", "model.enable_cuda_graph=false") == []


def test_speed_on_mock_data_is_told_before_anything_runs() -> None:
    criterion = {"kind": "throughput", "threshold": 100.0}
    (line,) = broken(*HONEST, data={"kind": "mock"}, criterion=criterion)
    assert "throughput means nothing on mock data" in line
    assert broken(*HONEST, criterion=criterion) == []


def test_memory_on_mock_data_is_doubted_and_a_crash_is_not() -> None:
    memory = {"kind": "out_of_memory", "capacity_bytes": 2**36}
    (line,) = broken(*HONEST, data={"kind": "mock"}, criterion=memory)
    assert "out_of_memory is not judged on mock data" in line
    assert broken(*HONEST, data={"kind": "mock"}, criterion={"kind": "crash"}) == []


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({**PINNED, "HF_HUB_OFFLINE": "0"}, "HF_HUB_OFFLINE must stay 1"),
        ({name: PINNED[name] for name in PINNED if name != "HF_HOME"}, "pin HF_HOME in env"),
        (
            {"HF_HOME": "/srv/hf", "NCCL_NVLS_ENABLE": "0"},
            "host's PYTORCH_CUDA_ALLOC_CONF, NCCL_GRAPH_REGISTER:",
        ),
    ],
)
def test_what_decides_of_memory_and_comes_from_the_hub_is_pinned(env: dict[str, str], says: str) -> None:
    (line,) = broken(*HONEST, env=env)
    assert says in line


def test_a_run_on_a_cpu_has_no_use_for_what_cuda_reads() -> None:
    assert broken(*HONEST, env={"HF_HOME": "/srv/hf"}, device="cpu", gpus=0) == []
