"""Each shipped profile against what real commits of upstream contain.

`data/megatron_bridge_commits.json` holds facts alone: of the files that the profiles ask for, which exist
at a commit, and which of the asked texts they hold. Releases, and both sides of every boundary between
two eras.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.launch_adapters import LaunchAdapter
from bisection.adapters.profiles import Profile
from firstbad.shipped_profiles import NotShipped, as_yaml, names, repositories_of, shipped
from memory_models.eras import RENAMED
from workers.environments import PreparedEnvironment
from workers.eras import NoAdapter, OverrideRefused, choose_adapter, spell
from workers.launch_rules import broken_rules
from workers.launching import plan_launch

COMMITS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "megatron_bridge_commits.json").read_text()
)
GPU = [name for name in names() if name != "torchrun"]
OF_BRIDGE = [name for name in GPU if shipped(name).repository == "megatron-bridge"]
SMALL = "qwen3-vl-30b-a3b-sft-8gpu"
NEMO = "nemo-rl-" + SMALL
INNER, CORE = "3rdparty/Megatron-Bridge-workspace/Megatron-Bridge/", "3rdparty/Megatron-LM/"


def workspace(folder: Path, label: str, *, tree: str = "", core: str = CORE) -> Path:
    """A folder that contains of the commit what the fixture knows; pins may lie elsewhere."""
    facts = COMMITS[label]
    for path in facts["paths"]:
        place = core + path.removeprefix(CORE) if path.startswith(CORE) else tree + path
        held = folder / place
        held.parent.mkdir(parents=True, exist_ok=True)
        held.write_text("\n".join(facts["texts"].get(path, ())))
    return folder


def chosen(name: str, label: str, folder: Path) -> LaunchAdapter:
    return choose_adapter(shipped(name), workspace(folder, label))


def recipe_of(adapter: LaunchAdapter) -> str:
    return adapter.command[adapter.command.index("--recipe") + 1]


@pytest.mark.parametrize("name", names())
def test_a_shipped_profile_reads_back_as_a_file_of_the_catalogue(tmp_path: Path, name: str) -> None:
    for folder in ("profiles", "repositories"):
        (tmp_path / folder).mkdir()
    (tmp_path / "profiles" / f"{name}.yaml").write_text(as_yaml(shipped(name)))
    for repository, row in repositories_of(shipped(name)).items():
        (tmp_path / "repositories" / f"{repository}.yaml").write_text(yaml.safe_dump(row))
    catalogue = Catalogue(tmp_path)
    assert catalogue.profile(name) == shipped(name)
    if name != "torchrun":
        assert catalogue.pins_of(shipped(name).repository)


@pytest.mark.parametrize("name", names())
def test_a_shipped_profile_keeps_the_rules_and_says_that_it_is_untested(name: str) -> None:
    profile = shipped(name)
    assert list(broken_rules(profile)) == []
    assert "ntested" in profile.description
    assert profile.data.kind == "real"
    assert profile.device == "cuda"


@pytest.mark.parametrize("name", GPU)
def test_code_from_elsewhere_makes_a_trial_invalid(name: str) -> None:
    profile = shipped(name)
    assert set(profile.expected_imports) == {"megatron.core", "megatron.bridge"}
    assert all(place.startswith("{workspace}/") for place in profile.expected_imports.values())


@pytest.mark.parametrize("label", COMMITS)
def test_at_most_one_era_fits_a_commit_and_one_fits_from_the_first_recipe_on(
    tmp_path: Path, label: str
) -> None:
    folder = workspace(tmp_path, label)
    fitting = {name: [a.name for a in shipped(name).launch if _fits(a, folder)] for name in OF_BRIDGE}
    known = {name: _recipes(shipped(name)) & _texts(label) for name in OF_BRIDGE}
    assert {name: len(eras) for name, eras in fitting.items()} == {name: bool(known[name]) for name in known}


def _fits(adapter: LaunchAdapter, folder: Path) -> bool:
    """Asked of this era alone; one that is refused fits its commits, too."""
    alone = {**adapter.model_dump(mode="json", exclude_defaults=True), "command": ["x"], "refused": ""}
    profile = Profile.model_validate(
        {
            "name": "alone",
            "repository": "megatron-bridge",
            "environment": {"kind": "interpreter", "python": "/env/bin/python"},
            "launch": [alone],
        }
    )
    try:
        choose_adapter(profile, folder)
    except NoAdapter:
        return False
    return True


def _recipes(profile: Profile) -> set[str]:
    return {recipe_of(adapter) for adapter in profile.launch if adapter.command}


def _texts(label: str) -> set[str]:
    return {text for held in COMMITS[label]["texts"].values() for text in held}


@pytest.mark.parametrize(
    ("label", "era", "recipe", "script"),
    [
        (
            "0.2.0",
            "2025-11 script",
            "qwen3_vl_3b_active_30b_moe_finetune_config",
            "examples/recipes/qwen_vl/",
        ),
        (
            "0.2.2",
            "2025-11 script",
            "qwen3_vl_3b_active_30b_moe_finetune_config",
            "examples/recipes/qwen_vl/",
        ),
        ("7ce695c50", "2025-11 script", "qwen3_vl_30b_a3b_finetune_config", "examples/recipes/qwen_vl/"),
        ("4fb7c6326", "2026-01 script", "qwen3_vl_30b_a3b_finetune_config", "examples/recipes/qwen_vl/"),
        ("0.3.1", "2026-01 moved script", "qwen3_vl_30b_a3b_finetune_config", "examples/models/vlm/qwen_vl/"),
        ("03ea33ed3", "2026-02 validation", "qwen3_vl_30b_a3b_finetune_config", "examples/models/vlm/"),
        ("0.4.0", "2026-03 datasets", "qwen3_vl_30b_a3b_sft_config", "scripts/training/"),
        ("0.5.1", "2026-03 datasets", "qwen3_vl_30b_a3b_sft_config", "scripts/training/"),
        ("4d7ce7908", "2026-06 conversations", "qwen3_vl_30b_a3b_sft_config", "scripts/training/"),
        ("e577829e1", "2026-07 builders", "qwen3_vl_30b_a3b_sft_config", "scripts/training/"),
        ("0.6.0", "2026-07 launcher", "qwen3_vl_30b_a3b_sft_config", "scripts/training/"),
        ("2026-08-22", "2026-07 launcher", "qwen3_vl_30b_a3b_sft_config", "scripts/training/"),
    ],
)
def test_the_era_of_a_commit_decides_script_and_recipe(
    tmp_path: Path, label: str, era: str, recipe: str, script: str
) -> None:
    adapter = chosen(SMALL, label, tmp_path)
    assert (adapter.name, recipe_of(adapter)) == (era, recipe)
    assert adapter.command[3].startswith(script)


@pytest.mark.parametrize(
    ("name", "label", "words"),
    [
        (SMALL, "0.3.1", ["--dataset-type", "preloaded", "--data-path", "{data}/train.jsonl"]),
        (SMALL, "0.5.0", ["--dataset", "vlm-preloaded", "dataset.train_data_path={data}/train.jsonl"]),
        (SMALL, "0.6.0", ["--dataset", "local-vlm"]),
        (f"{SMALL}-cord-v2", "0.2.0", ["--dataset-type", "hf", "dataset.maker_name=make_cord_v2_dataset"]),
        (f"{SMALL}-cord-v2", "0f713b177", ["dataset.maker_name=make_cord_v2_dataset"]),
        (f"{SMALL}-cord-v2", "0.6.0", ["--dataset", "cord-v2"]),
        (f"{SMALL}-medpix", "0.4.0", ["dataset.maker_name=make_medpix_dataset"]),
        (f"{SMALL}-medpix", "8896e9027", ["dataset.source.dataset_name=medpix"]),
        (f"{SMALL}-energon", "0.3.0", ["--dataset-type", "energon", "dataset.global_batch_size=32"]),
        (f"{SMALL}-energon", "ea2c86f96", ["--dataset", "energon", "dataset.path={data}"]),
    ],
)
def test_data_is_named_as_the_era_names_it(tmp_path: Path, name: str, label: str, words: list[str]) -> None:
    command = chosen(name, label, tmp_path).command
    assert [word for word in words if word not in command] == []


@pytest.mark.parametrize(
    ("name", "label", "why"),
    [
        (SMALL, "0.1.0rc4", "no launch adapter of profile"),
        (SMALL, "0f713b177", "from 2026-03-04 to 2026-03-23 the runner takes no local data"),
        (SMALL, "8896e9027", "from 2026-07-14 to 2026-07-15 the runner takes no local data"),
        (f"{SMALL}-energon", "0.2.0", "only since 2025-12-22"),
        (f"{SMALL}-energon", "0.5.0", "only upstream's 8B LoRA recipe"),
        (f"{SMALL}-energon", "0.6.0", "only upstream's 8B LoRA recipe"),
        ("qwen3-vl-235b-a22b-sft-32gpu", "0.2.2", "no launch adapter of profile"),
        ("qwen3.5-vl-35b-a3b-sft-3d-16gpu", "f9738626e^", "no launch adapter of profile"),
        ("qwen3.5-vl-35b-a3b-sft-fsdp-16gpu", "ffe05be08^", "no launch adapter of profile"),
    ],
)
def test_what_an_era_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, name: str, label: str, why: str
) -> None:
    with pytest.raises(NoAdapter, match=why):
        chosen(name, label, tmp_path)


@pytest.mark.parametrize("name", GPU)
def test_every_launch_trains_all_of_the_model_and_evaluates_nothing(name: str) -> None:
    for adapter in shipped(name).launch:
        if adapter.command:
            free = [word for word in adapter.command if word.startswith("model.freeze_")]
            assert len(free) == 3
            assert all(word.endswith("=false") for word in free)
            assert {"train.eval_iters=0", "validation.eval_iters=0"} & set(adapter.command)


@pytest.mark.parametrize("name", names())
def test_what_a_shipped_profile_pins_reaches_every_trial_whatever_the_workers_own_environment_says(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is resumed, the batch is pinned, the hub is left alone, in what is started and recorded."""
    profile = shipped(name)
    strangers = {"HF_HUB_OFFLINE": "0", "HF_HOME": "/another", "PYTORCH_CUDA_ALLOC_CONF": "another"}
    for variable in {*profile.newest_adapter.env, *strangers}:
        monkeypatch.setenv(variable, strangers.get(variable, "another"))
    environment = PreparedEnvironment(key="e", python=Path("/opt/venv/bin/python"), overlays=())
    for adapter in profile.launch:
        if not adapter.command:
            continue
        anywhere = Profile.model_validate(
            {**profile.model_dump(), "launch": [{**adapter.model_dump(), "when": {}}], "renamed": []}
        )
        planned = plan_launch(
            anywhere, tmp_path, environment, Path("/trial"), overrides={"model.x": 1}, capacity_bytes=None
        )
        seen = planned.environment
        assert seen["HF_HUB_OFFLINE"] == "1"
        assert seen["HF_HOME"] == profile.places["hf_home"]
        assert "another" not in [seen.get(variable) for variable in adapter.env]
        if name == "torchrun":
            continue
        said = dict(word.split("=", 1) for word in planned.command if "=" in word)
        assert (said["checkpoint.load"], said["checkpoint.save"]) == ("null", "null")
        assert int(said["train.global_batch_size"]) > 0
        assert seen["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
        assert seen["TORCH_NCCL_AVOID_RECORD_STREAMS"] == "1"


@pytest.mark.parametrize(
    ("label", "written", "spelt"),
    [
        ("0.2.0", "dataset.seq_length", "dataset.sequence_length"),
        ("0.3.1", "dataset.sequence_length", "dataset.seq_length"),
        ("0.3.1", "model.cuda_graph_modules", "model.cuda_graph_scope"),
        ("0.3.1", "validation.eval_iters", "train.eval_iters"),
        ("0.4.0", "train.eval_iters", "validation.eval_iters"),
        ("0.4.0", "dataset.enable_in_batch_packing", "dataset.pack_sequences_in_batch"),
        ("0.6.0", "dataset.pack_sequences_in_batch", "dataset.enable_in_batch_packing"),
        # Core knows both from 2026-05 on: what was asked for is left as it is.
        ("0.5.0", "model.cuda_graph_scope", "model.cuda_graph_scope"),
        ("0.5.0", "model.cuda_graph_modules", "model.cuda_graph_modules"),
        ("2026-08-22", "model.moe_flex_dispatcher_num_sms", "model.moe_flex_dispatcher_num_sms"),
        ("0.2.0", "train.micro_batch_size", "train.micro_batch_size"),
    ],
)
def test_a_key_is_spelt_as_the_release_knows_it(tmp_path: Path, label: str, written: str, spelt: str) -> None:
    (change,) = spell(shipped(SMALL), workspace(tmp_path, label), {written: 1})
    assert (change.written, change.spelt) == (written, spelt)


@pytest.mark.parametrize(
    ("label", "written", "why"),
    [
        ("0.2.0", "dataset.enable_in_batch_packing", "VLM batches are packed only since 2026-01-29"),
        ("0.5.0", "model.moe_flex_dispatcher_num_sms", "moe_deepep_num_sms or model.moe_hybridep_num_sms"),
    ],
)
def test_a_key_that_the_release_does_not_have_is_refused(
    tmp_path: Path, label: str, written: str, why: str
) -> None:
    with pytest.raises(OverrideRefused, match=why):
        spell(shipped(SMALL), workspace(tmp_path, label), {written: 1})


def test_the_names_over_time_are_those_that_the_memory_model_reads() -> None:
    """An old and a present name of one setting here are the same pair there."""
    pairs = {
        (old, present)
        for setting in shipped(SMALL).renamed
        for present, *older in [list(setting.names)]
        for old in older
    }
    there = {(old, RENAMED[old]) for old, _ in pairs if old in RENAMED}
    assert there == {
        ("model.cuda_graph_scope", "model.cuda_graph_modules"),
        ("dataset.pack_sequences_in_batch", "dataset.enable_in_batch_packing"),
        ("dataset.sequence_length", "dataset.seq_length"),
    }
    assert there <= pairs


@pytest.mark.parametrize(
    ("label", "core", "era"),
    [
        ("0.2.2", "3rdparty/Megatron-LM-workspace/Megatron-LM/", "2025-11 script"),
        ("0.4.0", "3rdparty/Megatron-LM-workspace/Megatron-LM/", "2026-03 datasets"),
        ("0.5.0", INNER + CORE, "2026-03 datasets"),
        ("2026-08-22", INNER + CORE, "2026-07 launcher"),
    ],
)
def test_an_outer_repository_is_launched_from_its_pins_side_by_side_or_nested(
    tmp_path: Path, label: str, core: str, era: str
) -> None:
    folder = workspace(tmp_path, label, tree=INNER, core=core)
    (folder / core / "megatron" / "core").mkdir(parents=True, exist_ok=True)
    adapter = choose_adapter(shipped(NEMO), folder)
    assert adapter.name == era
    assert adapter.python_path == (f"{INNER}src", core.removesuffix("/"))
    assert adapter.command[3].startswith(INNER)
    (change,) = spell(shipped(NEMO), folder, {"model.cuda_graph_modules": []})
    expected = "model.cuda_graph_scope" if label in ("0.2.2", "0.4.0") else "model.cuda_graph_modules"
    assert change.spelt == expected


def test_fsdp_comes_before_three_dimensions_and_saves_nothing() -> None:
    order = [name for name in names() if name.startswith("qwen3.5")]
    assert order[0] == "qwen3.5-vl-35b-a3b-sft-fsdp-16gpu"
    for adapter in shipped(order[0]).launch:
        if adapter.command:
            assert "checkpoint.ckpt_format=fsdp_dtensor" in adapter.command


def test_a_name_that_does_not_ship_is_told_with_those_that_do() -> None:
    with pytest.raises(NotShipped, match=r"no profile 'qwen3-vl-30b'.*qwen3-vl-30b-a3b-sft-8gpu"):
        shipped("qwen3-vl-30b")
