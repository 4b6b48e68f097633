"""The written repository is real git, the same everywhere, and registered as an operator would."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bisection.adapters.catalogue import Catalogue
from bisection.criteria import CriterionKind
from firstbad.demo import Nightly, check, generate, plan, write_profile
from firstbad.demo.scenarios import PRELUDE


def git(nightly: Nightly, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=nightly.folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Nightly:
    return generate(plan("vision", 5), tmp_path_factory.mktemp("demo") / "nightly")


def test_the_same_plan_gives_the_same_hashes_whatever_git_is_told(
    nightly: Nightly, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[user]\nname = someone\nemail = else\n[core]\nautocrlf = true\n[commit]\ngpgsign = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert generate(nightly.plan, tmp_path / "again").commits == nightly.commits


def test_the_history_is_the_plan_on_one_branch(nightly: Nightly) -> None:
    log = git(nightly, "log", "--first-parent", "--reverse", "--format=%H", "main").split()
    assert log == [nightly.root, *nightly.commits]
    assert nightly.bad == log[-1]
    assert nightly.good == log[PRELUDE]
    subjects = git(nightly, "log", "--reverse", "--format=%s").splitlines()
    assert subjects[1:] == [edit.subject for edit in nightly.plan.commits]
    assert git(nightly, "status", "--porcelain") == ""


def test_the_working_tree_is_the_last_tree_of_the_plan(nightly: Nightly) -> None:
    files = git(nightly, "ls-files").split()
    assert {path: (nightly.folder / path).read_text() for path in files} == nightly.plan.trees()[-1]


def test_the_culprit_reverts_cleanly_from_the_bad_end(nightly: Nightly, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(nightly.folder), str(clone)], check=True)
    assert nightly.culprit is not None
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(
        ["git", *identity, "revert", "--no-edit", nightly.culprit], cwd=clone, check=True, capture_output=True
    )


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ValueError, match="is not empty"):
        generate(plan("none", 0), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_profile_is_one_that_the_catalogue_reads(nightly: Nightly, tmp_path: Path) -> None:
    name = write_profile(nightly, tmp_path)
    catalogue = Catalogue(tmp_path)
    profile = catalogue.profile(name)
    criterion = profile.default_criterion()
    assert criterion is not None
    assert criterion.kind is CriterionKind.OUT_OF_MEMORY
    assert criterion.capacity_bytes == nightly.plan.capacity_bytes
    assert profile.environment.overlay == ("nightly-photos",)
    assert catalogue.repository(profile.repository).url == str(nightly.folder)
    for folder in profile.environment.find_links:
        assert sorted(path.name for path in Path(folder).iterdir()) == [
            "nightly_photos-1.0-py3-none-any.whl",
            "nightly_photos-1.1-py3-none-any.whl",
        ]


def test_docs_cannot_change_the_repro_and_all_else_can(nightly: Nightly, tmp_path: Path) -> None:
    profile = Catalogue(tmp_path).profile(write_profile(nightly, tmp_path))
    for edit in nightly.plan.commits:
        relevant = any(change.path.startswith(profile.relevant_paths) for change in edit.changes)
        assert relevant != edit.only_docs


def report(kind: str, commits: list[str], component: str | None) -> dict[str, object]:
    return {"finding": {"kind": kind, "commits": commits}, "regression": {"component": component}}


def test_the_planted_culprit_with_its_component_is_the_right_answer(nightly: Nightly) -> None:
    assert nightly.culprit is not None
    assert check(nightly, report("found", [nightly.culprit], "vision")) == []


def test_each_part_of_a_wrong_answer_is_named(nightly: Nightly) -> None:
    assert nightly.culprit is not None
    (wrong_commit,) = check(nightly, report("found", [nightly.good], "vision"))
    assert nightly.culprit[:10] in wrong_commit
    (wrong_component,) = check(nightly, report("found", [nightly.culprit], "experts"))
    assert "the component is vision, not experts" in wrong_component
    assert len(check(nightly, {"finding": {"kind": "none", "commits": []}})) == 2


def test_where_nothing_regressed_the_right_answer_is_none(tmp_path: Path) -> None:
    quiet = generate(plan("none", 1), tmp_path / "nightly")
    assert quiet.culprit is None
    assert check(quiet, {"finding": {"kind": "none", "commits": []}}) == []
    assert check(quiet, report("found", [quiet.bad], "vision")) != []
