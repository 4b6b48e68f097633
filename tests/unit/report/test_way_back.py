"""Every command of the way back is run here, in a real repository with real pins."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bisection.commits import Commit, CommitRange
from bisection.configuration_delta import KeyChange, ValueType, configuration_delta
from bisection.criteria import Verdict
from bisection.way_back import (
    Command,
    Launch,
    Recipe,
    RevertOutcome,
    git_bisect_log,
    moved_paths,
    override_value,
    reproduce,
    way_back,
)

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    # The pinned repository lies next door; git clones submodules from a path only if told so.
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "protocol.file.allow",
    "GIT_CONFIG_VALUE_0": "always",
    "GIT_CONFIG_KEY_1": "init.defaultBranch",
    "GIT_CONFIG_VALUE_1": "main",
}

#: Prints what it was started with: stands for a training entry.
TRAIN = "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ.get('SHOWN', '')]))\n"


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(
        ["git", *argv], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def run_recipe(folder: Path, recipe: Recipe) -> str:
    """The recipe's text as a user pastes it: in one POSIX shell that stops at the first failure."""
    done = subprocess.run(
        ["sh", "-eu", "-c", recipe.text], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{recipe.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def commit(
    folder: Path, subject: str, files: Mapping[str, str], pins: Mapping[str, str] | None = None
) -> str:
    for name, text in files.items():
        (folder / name).write_text(text)
        git(folder, "add", name)
    for path, pin in (pins or {}).items():
        git(folder / path, "checkout", "--quiet", pin)
        git(folder, "add", path)
    git(folder, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


class Scene:
    """A repository of ten commits: the culprit is the sixth, and moves a pin, the lock and a recipe."""

    def __init__(self, root: Path) -> None:
        self.core, self.folder = root / "core", root / "nightly"
        for folder in (self.core, self.folder):
            folder.mkdir()
            git(folder, "init", "--quiet")
        self.old_pin = commit(self.core, "old", {"core.txt": "old"})
        self.new_pin = commit(self.core, "new", {"core.txt": "new"})
        git(self.folder, "submodule", "--quiet", "add", str(self.core), "3rdparty/core")
        hashes = [
            commit(
                self.folder,
                "first",
                {"train.py": TRAIN, "recipe.txt": "topk=2\n", "requirements.lock": "images==1.0\n"},
                {"3rdparty/core": self.old_pin},
            )
        ]
        for index in range(1, 10):
            if index == 5:
                hashes.append(
                    commit(
                        self.folder,
                        "the culprit; $(touch owned)",
                        {"recipe.txt": "topk=8\n", "requirements.lock": "images==1.1\n"},
                        {"3rdparty/core": self.new_pin},
                    )
                )
            else:
                hashes.append(commit(self.folder, f"commit {index}", {f"note-{index}.txt": str(index)}))
        self.range = CommitRange(
            commits=tuple(
                Commit(
                    hash=one,
                    parents=tuple(hashes[index - 1 : index]) if index else (),
                    subject=git(self.folder, "log", "-1", "--format=%s", one),
                    paths=("3rdparty/core", "recipe.txt", "requirements.lock") if index == 5 else (),
                    pins={"3rdparty/core": self.old_pin if index < 5 else self.new_pin},
                )
                for index, one in enumerate(hashes)
            )
        )
        self.parent, self.culprit = self.range.commits[4], self.range.commits[5]

    def recipes(
        self, *, changes: Sequence[KeyChange] | None = None, launch: Launch | None = None, clean: bool = True
    ) -> dict[str, Recipe]:
        revert = RevertOutcome.CLEAN if clean else RevertOutcome.CONFLICTS
        made = way_back(
            parent=self.parent,
            culprit=self.culprit,
            changes=changes,
            revert=revert,
            conflicts=() if clean else ("recipe.txt",),
            launch=launch,
        )
        return {recipe.name: recipe for recipe in made}


LAUNCH = Launch(
    command=("{python}", "train.py", "--name", "it's here"),
    override_syntax="{key}={value}",
    overrides={"train.steps": 4},
    environment={"SHOWN": "a b"},
    lock_path="requirements.lock",
    python=sys.executable,
)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def text(scene: Scene, name: str) -> str:
    return (scene.folder / name).read_text()


def test_going_back_to_the_last_good_commit_brings_its_pins_and_its_lock(scene: Scene) -> None:
    run_recipe(scene.folder, scene.recipes()["last_good"])
    assert git(scene.folder, "rev-parse", "HEAD") == scene.parent.hash
    assert text(scene, "recipe.txt") == "topk=2\n"
    assert text(scene, "requirements.lock") == "images==1.0\n"
    assert text(scene, "3rdparty/core/core.txt") == "old"


def test_only_what_is_pinned_can_be_taken_back(scene: Scene) -> None:
    recipe = scene.recipes(launch=LAUNCH)["pins"]
    assert moved_paths(scene.parent, scene.culprit, "requirements.lock") == (
        "3rdparty/core",
        "requirements.lock",
    )
    run_recipe(scene.folder, recipe)
    assert git(scene.folder, "rev-parse", "HEAD") == scene.range.bad.hash
    assert text(scene, "recipe.txt") == "topk=8\n"
    assert text(scene, "requirements.lock") == "images==1.0\n"
    assert text(scene, "3rdparty/core/core.txt") == "old"
    assert "other files too" in recipe.note


def test_the_revert_undoes_the_culprit_on_the_bad_end(scene: Scene) -> None:
    run_recipe(scene.folder, scene.recipes()["revert"])
    assert text(scene, "recipe.txt") == "topk=2\n"
    assert text(scene, "note-9.txt") == "9"


def test_a_merge_is_reverted_against_its_first_parent(scene: Scene) -> None:
    git(scene.folder, "checkout", "--quiet", "-b", "side")
    commit(scene.folder, "side", {"side.txt": "s"})
    git(scene.folder, "checkout", "--quiet", "main")
    commit(scene.folder, "main", {"main.txt": "m"})
    git(scene.folder, "merge", "--quiet", "--no-edit", "side")
    merge = git(scene.folder, "rev-parse", "HEAD")
    parents = tuple(git(scene.folder, "log", "-1", "--format=%P", merge).split())
    made = way_back(
        parent=scene.parent,
        culprit=Commit(hash=merge, parents=parents),
        changes=None,
        revert=RevertOutcome.CLEAN,
    )
    run_recipe(scene.folder, next(recipe for recipe in made if recipe.name == "revert"))
    assert not (scene.folder / "side.txt").exists()
    assert (scene.folder / "main.txt").exists()


def test_a_revert_that_conflicts_gives_no_command_but_says_where(scene: Scene) -> None:
    commit(scene.folder, "on top", {"recipe.txt": "topk=9\n"})
    recipe = scene.recipes(clean=False)["revert"]
    assert recipe.commands == ()
    assert "conflicts in recipe.txt" in recipe.note
    # What the note says is true: git stops, and the abort undoes it.
    command = recipe.note.split("`")[1]
    failed = subprocess.run(shlex.split(command), cwd=scene.folder, env=ENVIRONMENT, capture_output=True)
    assert failed.returncode != 0
    git(scene.folder, "revert", "--abort")
    assert text(scene, "recipe.txt") == "topk=9\n"


def test_the_override_restores_the_old_values_in_the_launch_command(scene: Scene) -> None:
    changes = configuration_delta(
        {"model": {"topk": 2, "dropless": True, "modules": ["core_attn", "moe"], "kind": "torch.bfloat16"}},
        {"model": {"topk": 8, "dropless": None, "modules": ["moe"], "kind": "torch.float32"}},
    )
    printed = run_recipe(scene.folder, scene.recipes(changes=changes, launch=LAUNCH)["override"])
    assert printed.strip() == (
        '[["--name", "it\'s here", "train.steps=4", "model.dropless=true", "model.kind=torch.bfloat16", '
        '"model.modules=[\\"core_attn\\", \\"moe\\"]", "model.topk=2"], "a b"]'
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"topk": 8}),
        ({"topk": "2; rm -rf /"}, {"topk": 8}),
        ({"topk": "true"}, {"topk": True}),
        ({"to=pk\n": 1}, {"to=pk\n": 2}),
        ({"topk": "\u202e2"}, {"topk": 8}),
    ],
)
def test_a_value_that_an_override_cannot_give_back_is_said_so(
    scene: Scene, before: dict[str, object], after: dict[str, object]
) -> None:
    recipe = scene.recipes(changes=configuration_delta(before, after), launch=LAUNCH)["override"]
    assert recipe.commands == ()
    assert "cannot give back" in recipe.note
    assert "\u202e" not in recipe.note
    assert "\n" not in recipe.note


def test_without_an_override_syntax_or_a_difference_there_is_no_override(scene: Scene) -> None:
    change = KeyChange(
        key="a", before=1, after=2, before_type=ValueType.INTEGER, after_type=ValueType.INTEGER
    )
    assert scene.recipes(changes=[change])["override"].commands == ()
    assert "override" not in scene.recipes(changes=[])


def test_a_value_is_written_as_hydra_reads_it() -> None:
    assert [override_value(v) for v in (None, True, 1, 1.5, "a", [1, "b"])] == [
        "null",
        "true",
        "1",
        "1.5",
        "a",
        '[1, "b"]',
    ]


def test_reproducing_by_hand_runs_the_culprit_in_a_folder_of_its_own(scene: Scene) -> None:
    setup = (
        (sys.executable, "-m", "venv", "--without-pip", ".venv"),
        (".venv/bin/python", "-c", "import sys; assert sys.prefix != sys.base_prefix"),
    )
    launch = Launch(**{**LAUNCH.__dict__, "setup": setup, "python": ".venv/bin/python"})
    printed = run_recipe(scene.folder, reproduce(scene.culprit, launch))
    assert printed.strip().endswith('[["--name", "it\'s here", "train.steps=4"], "a b"]')
    made = scene.folder.parent / f"firstbad-{scene.culprit.short}"
    assert (made / "recipe.txt").read_text() == "topk=8\n"
    assert (made / "3rdparty/core/core.txt").read_text() == "new"


def test_every_word_of_a_command_survives_the_shell() -> None:
    nasty = ("a b", "$(touch owned)", "`id`", "'", '"', "\\", "*", "~", "#x", "", "-n", "é\u202e")
    command = Command(
        argv=(sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *nasty),
        environment={"X": "$(touch owned)"},
    )
    printed = subprocess.run(["sh", "-c", command.text], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == ascii(list(nasty))


def replay(scene: Scene, tmp_path: Path, log: str) -> str:
    path = tmp_path / "bisect.log"
    path.write_text(log)
    done = subprocess.run(
        ["git", "bisect", "replay", str(path)],
        cwd=scene.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def verdicts(scene: Scene, **by_position: str) -> dict[str, Verdict]:
    return {
        scene.range.commits[int(place[1:])].hash: Verdict(verdict) for place, verdict in by_position.items()
    }


def test_git_replays_the_log_to_the_culprit(scene: Scene, tmp_path: Path) -> None:
    said = verdicts(scene, c0="good", c9="bad", c4="good", c7="bad", c6="skip", c5="bad")
    log = git_bisect_log(scene.range, said, culprit=scene.culprit.hash)
    assert f"{scene.culprit.hash} is the first bad commit" in replay(scene, tmp_path, log)


def test_git_replays_the_log_though_one_trial_was_a_flake(scene: Scene, tmp_path: Path) -> None:
    said = verdicts(scene, c0="good", c9="bad", c8="good", c2="bad", c4="good", c5="bad")
    log = git_bisect_log(scene.range, said, culprit=scene.culprit.hash)
    assert log.count("# left out, it contradicts the others") == 2
    assert f"{scene.culprit.hash} is the first bad commit" in replay(scene, tmp_path, log)


def test_git_replays_a_set_to_its_suspects(scene: Scene, tmp_path: Path) -> None:
    said = verdicts(scene, c0="good", c9="bad", c3="good", c4="skip", c5="skip", c6="bad")
    printed = replay(scene, tmp_path, git_bisect_log(scene.range, said, culprit=None))
    assert "first bad commit could be any of" in printed
    for suspect in scene.range.commits[4:7]:
        assert suspect.hash in printed
    assert scene.range.commits[3].hash not in printed


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"c0": "good", "c9": "good"},
        {"c0": "skip", "c9": "bad"},
        {"c0": "skip", "c9": "skip"},
        {"c2": "bad", "c7": "good"},  # contradict each other: neither is told to git
    ],
)
def test_without_a_good_and_a_bad_commit_there_is_no_log(scene: Scene, said: dict[str, str]) -> None:
    assert git_bisect_log(scene.range, verdicts(scene, **said), culprit=None) == ""


def test_a_subject_with_line_breaks_cannot_write_into_the_log(scene: Scene, tmp_path: Path) -> None:
    rows = list(scene.range.commits)
    rows[5] = Commit(**{**rows[5].__dict__, "subject": f"x\ngit bisect good {rows[9].hash}\r\x1b[2J"})
    line = CommitRange(commits=tuple(rows))
    said = verdicts(scene, c0="good", c9="bad", c4="good", c5="bad")
    log = git_bisect_log(line, said, culprit=scene.culprit.hash)
    assert f"\ngit bisect good {rows[9].hash}" not in log
    assert "\x1b" not in log
    assert f"{scene.culprit.hash} is the first bad commit" in replay(scene, tmp_path, log)


def test_pins_that_gitmodules_does_not_list_are_checked_out_in_their_clones(scene: Scene) -> None:
    launch = Launch(command=("true",), unlisted_pins=("3rdparty/core",))
    recipe = scene.recipes(launch=launch)["last_good"]
    checkout, *rest = (command.argv[1:] for command in recipe.commands)
    git(scene.folder, *checkout)
    (scene.folder / ".gitmodules").unlink()
    git(scene.folder / "3rdparty/core", "checkout", "--quiet", "--detach", scene.new_pin)
    for words in rest:
        git(scene.folder, *words)
    assert git(scene.folder / "3rdparty/core", "rev-parse", "HEAD").strip() == scene.old_pin
    assert "submodule" not in recipe.text + reproduce(scene.culprit, launch).text
