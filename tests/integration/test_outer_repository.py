"""An outer repository in NeMo-RL's way: Bridge and Core pinned side by side, later Core as a pin of Bridge.

The repositories are generated with real git from the facts that are known of upstream's commits, exported
as for a trial, and launched by the shipped profile.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.commits import State
from firstbad.shipped_profiles import as_yaml, repositories_of, shipped
from tests.repository_scene import RepositoryScene
from workers.environments import PreparedEnvironment
from workers.launching import PROBE_FOLDER, plan_launch
from workers.workspaces import Workspaces

FACTS = Path(__file__).parents[1] / "unit" / "firstbad" / "data" / "megatron_bridge_commits.json"
PROFILE = "nemo-rl-qwen3-vl-30b-a3b-sft-8gpu"
BRIDGE = "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge"
SIDE_BY_SIDE = "3rdparty/Megatron-LM-workspace/Megatron-LM"
CORE = "3rdparty/Megatron-LM"


class Outer:
    """Three repositories, and a catalogue as `firstbad profiles show` writes it, but for the URLs."""

    def __init__(self, folder: Path) -> None:
        self.facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text())
        self.scenes = {
            name: RepositoryScene(folder / name) for name in ("nemo-rl", "megatron-bridge", "megatron-lm")
        }
        catalogue = folder / "catalogue"
        for kind in ("profiles", "repositories"):
            (catalogue / kind).mkdir(parents=True)
        (catalogue / "profiles" / f"{PROFILE}.yaml").write_text(as_yaml(shipped(PROFILE)))
        for name, row in repositories_of(shipped(PROFILE)).items():
            row = {**row, "url": self.scenes[name].url, "default_branch": "main"}
            (catalogue / "repositories" / f"{name}.yaml").write_text(yaml.safe_dump(row))
        self.catalogue = Catalogue(catalogue)
        self.root = folder / "worker"

    def core(self, label: str) -> str:
        """A commit of Core as the label's commit of Bridge pins it."""
        held = self._texts(label, within=f"{CORE}/")
        return self.commit("megatron-lm", {"megatron/core/__init__.py": label, **held}, label)

    def bridge(self, label: str, core: str | None) -> str:
        scene = self.scenes["megatron-bridge"]
        for path, text in self._texts(label).items():
            scene.write(path, text)
        scene.git("add", "-A")
        if core:
            scene.pin(CORE, core)
        return scene.commit_index(label)

    def outer(self, subject: str, pins: dict[str, str]) -> str:
        scene = self.scenes["nemo-rl"]
        scene.git("read-tree", "--empty")
        scene.write("pyproject.toml", "[project]\n")
        scene.git("add", "pyproject.toml")
        for path, commit in pins.items():
            scene.pin(path, commit)
        return scene.commit_index(subject)

    def commit(self, name: str, files: dict[str, str], subject: str) -> str:
        for path, text in files.items():
            self.scenes[name].write(path, f"{text}\n")
        return self.scenes[name].commit(subject)

    def _texts(self, label: str, within: str = "") -> dict[str, str]:
        facts = self.facts[label]
        return {
            path.removeprefix(within): "\n".join(facts["texts"].get(path, ())) + "\n"
            for path in facts["paths"]
            if (path.startswith(within) if within else not path.startswith(f"{CORE}/"))
        }


@pytest.mark.parametrize(
    ("label", "nested", "era"),
    [("0.4.0", False, "2026-03 datasets"), ("2026-08-22", True, "2026-07 launcher")],
)
def test_a_state_of_an_outer_repository_is_exported_with_its_pins_and_launched_from_them(
    tmp_path: Path, label: str, nested: bool, era: str
) -> None:
    world = Outer(tmp_path)
    core = world.core(label)
    bridge = world.bridge(label, core if nested else None)
    state = world.outer(label, {BRIDGE: bridge, **({} if nested else {SIDE_BY_SIDE: core})})
    profile = world.catalogue.profile(PROFILE)
    repository = world.catalogue.repository(profile.repository)
    place = f"{BRIDGE}/{CORE}" if nested else SIDE_BY_SIDE
    workspace = Workspaces(world.root, world.catalogue).check_out(
        repository, State(commit=state), tmp_path / "workspace"
    )
    assert dict(workspace.pins) == {BRIDGE: bridge, place: core}
    environment = PreparedEnvironment(key="e", python=Path("/opt/venv/bin/python"), overlays=())
    launch = plan_launch(
        profile, workspace.folder, environment, tmp_path / "trial", overrides={}, capacity_bytes=None
    )
    assert launch.adapter == era
    probe, *paths = launch.environment["PYTHONPATH"].split(":")
    assert probe == str(PROBE_FOLDER)
    assert paths == [str(workspace.folder / BRIDGE / "src"), str(workspace.folder / place)]
    assert (Path(paths[0]) / "megatron" / "bridge").is_dir()
    assert (Path(paths[1]) / "megatron" / "core" / "__init__.py").read_text() == f"{label}\n"
    script = next(word for word in launch.command if word.endswith("run_recipe.py"))
    assert (workspace.folder / script).is_file()


def test_either_pin_of_an_outer_repository_can_be_moved_alone(tmp_path: Path) -> None:
    world = Outer(tmp_path)
    cores = [world.core("0.4.0")]
    bridge = world.bridge("0.4.0", None)
    state = world.outer("side by side", {BRIDGE: bridge, SIDE_BY_SIDE: cores[0]})
    cores.append(world.commit("megatron-lm", {"megatron/core/__init__.py": "moved"}, "Move"))
    profile = world.catalogue.profile(PROFILE)
    workspace = Workspaces(world.root, world.catalogue).check_out(
        world.catalogue.repository(profile.repository),
        State(commit=state, pins=((SIDE_BY_SIDE, cores[1]),)),
        tmp_path / "workspace",
    )
    assert dict(workspace.pins) == {BRIDGE: bridge, SIDE_BY_SIDE: cores[1]}
    assert (workspace.folder / SIDE_BY_SIDE / "megatron/core/__init__.py").read_text() == "moved\n"
