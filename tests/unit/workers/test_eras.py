"""Which adapter fits a commit, and how a commit spells a key: read from its files, and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.profiles import Profile
from workers.eras import NoAdapter, OverrideRefused, choose_adapter, spell


def profile(**fields: Any) -> Profile:
    return Profile.model_validate(
        {
            "name": "tiny",
            "repository": "nightly",
            "environment": {"kind": "interpreter", "python": "/env/bin/python"},
            "launch": [{"command": ["x"]}],
            **fields,
        }
    )


def adapters(*whens: dict[str, Any]) -> Profile:
    return profile(launch=[{"name": str(n), "when": when, "command": ["x"]} for n, when in enumerate(whens)])


def test_the_first_adapter_that_fits_the_commit_is_used(tmp_path: Path) -> None:
    wanted = adapters({"path_exists": "new.py"}, {"path_exists": "old.py", "path_absent": "gone.py"})
    with pytest.raises(
        NoAdapter, match=r"no launch adapter of profile tiny fits.*new\.py must exist; old\.py"
    ):
        choose_adapter(wanted, tmp_path)
    (tmp_path / "old.py").touch()
    assert choose_adapter(wanted, tmp_path).name == "1"
    (tmp_path / "new.py").touch()
    assert choose_adapter(wanted, tmp_path).name == "0"
    (tmp_path / "new.py").unlink()
    (tmp_path / "gone.py").touch()
    with pytest.raises(NoAdapter):
        choose_adapter(wanted, tmp_path)


def test_all_paths_of_a_condition_count(tmp_path: Path) -> None:
    wanted = adapters({"path_exists": ["a", "b"], "path_absent": ["c", "d"]})
    (tmp_path / "a").touch()
    with pytest.raises(NoAdapter):
        choose_adapter(wanted, tmp_path)
    (tmp_path / "b").touch()
    assert choose_adapter(wanted, tmp_path).name == "0"
    (tmp_path / "d").touch()
    with pytest.raises(NoAdapter):
        choose_adapter(wanted, tmp_path)


def test_a_text_in_a_file_tells_two_eras_apart(tmp_path: Path) -> None:
    wanted = adapters(
        {"file_contains": {"recipes.py": "def sft_config"}},
        {"path_exists": "recipes.py", "file_lacks": {"recipes.py": "def sft_config"}},
    )
    recipes = tmp_path / "recipes.py"
    recipes.write_text("def finetune_config(): ...")
    assert choose_adapter(wanted, tmp_path).name == "1"
    recipes.write_text("def sft_config(): ...")
    assert choose_adapter(wanted, tmp_path).name == "0"
    recipes.unlink()
    with pytest.raises(NoAdapter, match=r"recipes\.py must contain 'def sft_config'"):
        choose_adapter(wanted, tmp_path)


def test_a_file_that_is_absent_lacks_every_text(tmp_path: Path) -> None:
    assert choose_adapter(adapters({"file_lacks": {"recipes.py": "x"}}), tmp_path).name == "0"


def test_a_link_is_not_followed_to_a_text(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("def sft_config")
    (tmp_path / "recipes.py").symlink_to(tmp_path / "secret")
    with pytest.raises(NoAdapter):
        choose_adapter(adapters({"file_contains": {"recipes.py": "def sft_config"}}), tmp_path)


def test_an_era_that_cannot_be_launched_says_why(tmp_path: Path) -> None:
    wanted = profile(
        launch=[
            {"when": {"path_exists": "old.py"}, "refused": "its recipes take no local data"},
            {"command": ["x"]},
        ]
    )
    assert choose_adapter(wanted, tmp_path).command == ("x",)
    (tmp_path / "old.py").touch()
    with pytest.raises(NoAdapter, match="cannot run at this commit: its recipes take no local data"):
        choose_adapter(wanted, tmp_path)


RENAMED = profile(
    renamed=[
        {
            "names": {"model.graph_modules": "    graph_modules:", "model.graph_scope": "    graph_scope:"},
            "files": ["core/config.py", "vendored/config.py"],
        },
        {
            "names": {"validation.eval_iters": "    validation: ", "train.eval_iters": ""},
            "files": "bridge/config.py",
        },
        {
            "names": {"model.num_sms": "    num_sms:"},
            "files": "core/config.py",
            "note": "name the backend's own key",
        },
    ]
)


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(workspace: Path, *written: str) -> list[str]:
    return [change.spelt for change in spell(RENAMED, workspace, dict.fromkeys(written, 1))]


def test_a_key_is_spelt_as_the_commit_knows_it_in_both_directions(tmp_path: Path) -> None:
    old = tree(tmp_path / "old", core__config="    graph_scope: str")
    assert names(old, "model.graph_modules") == ["model.graph_scope"]
    assert names(old, "model.graph_scope") == ["model.graph_scope"]
    new = tree(tmp_path / "new", core__config="    graph_modules: list")
    assert names(new, "model.graph_scope") == ["model.graph_modules"]


def test_a_name_that_the_commit_still_knows_is_left_alone(tmp_path: Path) -> None:
    both = tree(tmp_path, core__config="    graph_modules: list\n    graph_scope: str")
    assert names(both, "model.graph_scope", "train.steps") == ["model.graph_scope", "train.steps"]


def test_any_of_the_files_may_tell(tmp_path: Path) -> None:
    assert names(tree(tmp_path, vendored__config="    graph_scope: str"), "model.graph_modules") == [
        "model.graph_scope"
    ]


def test_without_the_files_nothing_is_translated(tmp_path: Path) -> None:
    assert names(tmp_path, "model.graph_modules", "model.num_sms") == ["model.graph_modules", "model.num_sms"]


def test_a_name_without_a_text_is_taken_where_no_other_is_known(tmp_path: Path) -> None:
    config = tree(tmp_path, bridge__config="class ConfigContainer:") / "bridge" / "config.py"
    assert names(tmp_path, "validation.eval_iters") == ["train.eval_iters"]
    config.write_text("    validation: ValidationConfig")
    assert names(tmp_path, "train.eval_iters") == ["validation.eval_iters"]


def test_the_marks_of_an_added_key_stay(tmp_path: Path) -> None:
    assert names(tree(tmp_path, core__config="    graph_scope: str"), "+model.graph_modules") == [
        "+model.graph_scope"
    ]


def test_a_setting_that_the_commit_does_not_have_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tree(tmp_path, core__config="    other: str")
    with pytest.raises(OverrideRefused, match=r"does not know model\.num_sms: name the backend's own key"):
        names(tmp_path, "model.num_sms")
    with pytest.raises(
        OverrideRefused, match=r"any of its names \(model\.graph_modules, model\.graph_scope\)"
    ):
        names(tmp_path, "model.graph_scope")


def test_two_names_of_one_setting_are_refused(tmp_path: Path) -> None:
    tree(tmp_path, core__config="    graph_scope: str")
    with pytest.raises(OverrideRefused, match="are one setting at this commit"):
        names(tmp_path, "model.graph_scope", "model.graph_modules")
