"""`firstbad profiles` from the outside: what it prints, and with what it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from bisection.adapters.catalogue import Profile
from firstbad.command_line import app


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FIRSTBAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FIRSTBAD_CATALOGUE", str(tmp_path))
    for folder in ("profiles", "repositories"):
        (tmp_path / folder).mkdir()
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["profiles", *words])


def test_what_ships_is_listed_with_its_gpus_and_that_it_was_not_run() -> None:
    shown = run("list").stdout
    assert "qwen3-vl-235b-a22b-sft-32gpu                   32 GPUs" in shown
    assert "None of them was run on a GPU" in shown


def test_what_is_shown_is_a_file_of_the_catalogue() -> None:
    shown = run("show", "qwen3.5-vl-35b-a3b-sft-fsdp-16gpu").stdout
    profile = Profile.model_validate(yaml.safe_load(shown))
    assert profile.gpus == 16
    assert profile.slurm is not None


def test_a_shipped_profile_names_places_that_this_host_must_have(catalogue: Path) -> None:
    result = run("check", "torchrun")
    assert result.exit_code == 1
    assert "places.hf_home: /srv/firstbad/huggingface is not on this host" in result.stdout


def test_a_registered_profile_is_checked_before_a_shipped_one_of_its_name(catalogue: Path) -> None:
    row = yaml.safe_load(run("show", "torchrun").stdout)
    row |= {"places": {"hf_home": str(catalogue)}, "data": {"path": str(catalogue)}}
    (catalogue / "profiles" / "torchrun.yaml").write_text(yaml.safe_dump(row))
    result = run("check", "torchrun")
    assert (result.exit_code, result.stdout) == (0, "torchrun: 1 launch adapters, every rule is kept\n")
    row["launch"][0]["command"].remove("firstbad_probe")
    (catalogue / "profiles" / "torchrun.yaml").write_text(yaml.safe_dump(row))
    assert "does not start the probe" in run("check", "torchrun").stdout
