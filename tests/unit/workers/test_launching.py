"""Which adapter fits, what is put on the command line, and what a trial may see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.catalogue import Profile
from workers.environments import PreparedEnvironment
from workers.eras import OverrideRefused
from workers.launching import PROBE_FOLDER, Launch, check_overrides, plan_launch
from workers.requirement_lock import Pin
from workers.wheels import Overlay


def profile(**fields: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "tiny",
            "repository": "nightly",
            "environment": {"kind": "interpreter", "python": "/env/bin/python"},
            "launch": [
                {"when": {"path_exists": "new.py"}, "command": ["{python}", "new.py"]},
                {
                    "when": {"path_exists": "old.py", "path_absent": "gone.py"},
                    "command": ["{python}", "old.py"],
                },
            ],
            **fields,
        }
    )


def launch(tmp_path: Path, wanted: Profile, **options: Any) -> Launch:
    overlay = Overlay(key="k", folder=Path("/overlays/k"), pin=Pin(name="photos", version="1"))
    environment = PreparedEnvironment(key="e", python=Path("/env/bin/python"), overlays=(overlay,))
    options = {"overrides": {}, "capacity_bytes": None, **options}
    return plan_launch(wanted, tmp_path, environment, Path("/trial"), **options)


def test_a_dry_run_is_one_process_that_is_told_of_a_whole_world(tmp_path: Path) -> None:
    section = {"world_size": 64, "images": [[1024, 768]], "layers": "production", "skew": 0.5}
    (tmp_path / "new.py").touch()
    wanted = profile(device="dry_run", dry_run=section, steps=5)
    planned = launch(tmp_path, wanted, capacity_bytes=7)
    at = planned.command.index("--")
    assert planned.command[at - 4 : at] == ("--processes", "1", "--world-size", "64")
    assert (planned.processes, planned.world_size, wanted.world_size) == (1, 64, 64)
    environment = planned.environment
    assert environment["FIRSTBAD_DEVICE"] == "dry_run"
    assert environment["FIRSTBAD_MINIMUM_STEPS"] == "2"
    orders = json.loads(environment["FIRSTBAD_DRY_RUN"])
    assert (orders["images"], orders["layers"], orders["skew"]) == ([[1024, 768]], "production", 0.5)
    assert "world_size" not in orders, "the world's size is the environment's"
    other = profile(device="dry_run", dry_run={**section, "skew": 1.0}, steps=5)
    assert other.digest != wanted.digest


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": "dry_run"}, "need each other"),
        ({"dry_run": {"world_size": 8}}, "need each other"),
        ({"device": "dry_run", "dry_run": {"world_size": 8}, "gpus": 8}, "leave gpus"),
        ({"device": "dry_run", "dry_run": {"world_size": 8}, "control": "good_end"}, "no seconds"),
        (
            {
                "device": "dry_run",
                "dry_run": {"world_size": 8},
                "criterion": {"kind": "throughput", "threshold": 1},
            },
            "no seconds",
        ),
        (
            {
                "device": "dry_run",
                "dry_run": {"world_size": 8},
                "launch": [{"command": ["{python}"], "processes": 2}],
            },
            "set dry_run.world_size",
        ),
        ({"device": "dry_run", "dry_run": {"world_size": 8, "images": [[0, 4]]}}, "greater than or equal"),
        ({"device": "dry_run", "dry_run": {"world_size": 8, "layers": "fast"}}, "unfused"),
    ],
)
def test_a_dry_run_that_cannot_be_is_refused_at_reading(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        profile(**fields)


def test_the_command_is_filled_and_the_overrides_are_spelt_as_the_adapter_says(tmp_path: Path) -> None:
    adapter = {
        "command": ["{python}", "-m", "x", "steps={steps}", '{"a": {data}}', "{trial}/out", "{workspace}"],
        "override": "--set={key}:{value}",
        "processes": 2,
    }
    wanted = profile(launch=[adapter], steps=5, data={"path": "/data"})
    changes = {"train.micro_batch_size": 1, "model.x": None, "a": [1, "b"], "b": True, "c": "text"}
    planned = launch(tmp_path, wanted, overrides=changes)
    at = planned.command.index("--") + 1
    assert planned.command[at:] == (
        "/env/bin/python", "-m", "x", "steps=5", '{"a": /data}', "/trial/out", str(tmp_path),
        "--set=train.micro_batch_size:1", "--set=model.x:null", '--set=a:[1,"b"]', "--set=b:true",
        "--set=c:text",
    )  # fmt: skip
    assert planned.command[at - 3 : at - 1] == ("--processes", "2")
    assert planned.processes == 2


def test_a_place_on_the_host_is_filled_in_command_and_environment(tmp_path: Path) -> None:
    adapter = {"command": ["load={checkpoint}"], "env": {"HF_HOME": "{hf_home}"}}
    wanted = profile(launch=[adapter], places={"checkpoint": "/srv/weights", "hf_home": "/srv/hf"})
    planned = launch(tmp_path, wanted)
    assert planned.command[-1] == "load=/srv/weights"
    assert planned.environment["HF_HOME"] == "/srv/hf"


def test_an_override_reaches_the_command_under_the_name_that_the_commit_knows(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("    old_name: int\n")
    setting = {"names": {"model.new_name": "new_name:", "model.old_name": "old_name:"}, "files": "config.py"}
    adapter = {"name": "2025", "command": ["x"]}
    wanted = profile(launch=[adapter], renamed=[setting])
    planned = launch(tmp_path, wanted, overrides={"model.new_name": 3})
    assert planned.command[-1] == "model.old_name=3"
    assert (planned.adapter, planned.overrides[0].written) == ("2025", "model.new_name")


@pytest.mark.parametrize(
    "overrides",
    [
        {"--flag": 1},
        {"": 1},
        {"a b": 1},
        {"dataset._target_": "os.system"},
        {"a": "${oc.env:HOME}"},
        {"a": "x\ny"},
        {"a": "x" * 1001},
        {"a": {"_target_": "os.system"}},
        {"checkpoint.load": "/srv/another-run"},
        {"checkpoint.save": "/srv/another-run"},
        {"+checkpoint.load": "x"},
        {"~checkpoint.load": None},
    ],
)
def test_an_override_that_is_no_plain_value_is_refused(overrides: dict[str, Any]) -> None:
    with pytest.raises(OverrideRefused):
        check_overrides(overrides)


def test_the_environment_is_made_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTBAD_DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    adapter = {"command": ["x"], "env": {"EXTRA": "{workspace}/x"}, "python_path": ["src", "."]}
    wanted = profile(launch=[adapter], expected_imports={"megatron.core": "{workspace}/vendor"})
    seen = launch(tmp_path, wanted, capacity_bytes=1000).environment
    assert "secret" not in json.dumps(dict(seen))
    assert seen["PYTHONPATH"].split(":") == [
        str(PROBE_FOLDER),
        "/overlays/k",
        str(tmp_path / "src"),
        str(tmp_path),
    ]
    assert seen["HOME"] == "/trial/home"
    assert seen["EXTRA"] == f"{tmp_path}/x"
    assert seen["FIRSTBAD_CAPACITY_BYTES"] == "1000"
    assert seen["FIRSTBAD_REQUIRE_REAL_DATA"] == "1"
    assert json.loads(seen["FIRSTBAD_EXPECTED_IMPORTS"]) == {"megatron.core": f"{tmp_path}/vendor"}
    assert seen["CUDA_VISIBLE_DEVICES"] == "", "a CPU trial must not touch a GPU"


def test_the_probe_is_asked_for_allocations_only_where_they_are_wanted(tmp_path: Path) -> None:
    wanted = profile(launch=[{"command": ["x"]}])
    assert "FIRSTBAD_PROBE_MODE" not in launch(tmp_path, wanted).environment
    assert launch(tmp_path, wanted, full=True).environment["FIRSTBAD_PROBE_MODE"] == "full"


def test_that_nothing_is_resumed_may_be_said_again() -> None:
    check_overrides({"checkpoint.load": None, "checkpoint.pretrained_checkpoint": "/srv/weights"})


def test_without_a_capacity_none_is_enforced(tmp_path: Path) -> None:
    (tmp_path / "new.py").touch()
    assert "FIRSTBAD_CAPACITY_BYTES" not in launch(tmp_path, profile()).environment


def test_a_cuda_trial_sees_the_hosts_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    (tmp_path / "new.py").touch()
    assert launch(tmp_path, profile(device="cuda", gpus=1)).environment["CUDA_VISIBLE_DEVICES"] == "3"


def test_the_probe_is_where_the_path_says() -> None:
    assert (PROBE_FOLDER / "firstbad_probe" / "__main__.py").is_file()
