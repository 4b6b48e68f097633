"""The operator's files: what is accepted, and how an error names file, field and repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import BadCatalogueFile, Catalogue, NotRegistered
from bisection.criteria import CriterionKind

PROFILE: dict[str, Any] = {
    "name": "tiny",
    "repository": "nightly",
    "relevant_paths": ["train.py", "recipes/"],
    "environment": {"kind": "venv", "lock": "requirements.lock", "overlay": ["photos"]},
    "launch": [{"when": {"path_exists": "train.py"}, "command": ["{python}", "train.py"]}],
    "capacity_bytes": 1000,
    "criterion": {"kind": "out_of_memory"},
}
REPOSITORY: dict[str, Any] = {"name": "nightly", "url": "https://example.org/team/nightly.git"}


def catalogue(folder: Path, *, profile: object = PROFILE, repository: object = REPOSITORY) -> Catalogue:
    for kind, name, row in (("profiles", "tiny", profile), ("repositories", "nightly", repository)):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / f"{name}.yaml").write_text(yaml.safe_dump(row))
    return Catalogue(folder)


def test_a_profile_is_read_with_its_defaults(tmp_path: Path) -> None:
    profile = catalogue(tmp_path).profile("tiny")
    assert profile.launch[0].override == "{key}={value}"
    assert profile.steps == 3
    assert profile.environment_paths == ("requirements.lock",)
    assert [entry.name for entry in Catalogue(tmp_path).repositories()] == ["nightly"]


def test_an_out_of_memory_criterion_takes_its_capacity_from_the_profile(tmp_path: Path) -> None:
    criterion = catalogue(tmp_path).profile("tiny").default_criterion()
    assert criterion is not None
    assert criterion.kind is CriterionKind.OUT_OF_MEMORY
    assert criterion.capacity_bytes == 1000


def test_an_edit_is_seen_without_a_restart(tmp_path: Path) -> None:
    before = catalogue(tmp_path)
    catalogue(tmp_path, profile={**PROFILE, "steps": 7})
    assert before.profile("tiny").steps == 7


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"stepz": 3}, "stepz: no such field"),
        ({"steps": 2}, "steps: Input should be greater than or equal to 3"),
        ({"launch": []}, "launch: "),
        (
            {"limits": {"trial_seconds": float("inf")}},
            "limits.trial_seconds: Input should be a finite",
        ),
        (
            {"limits": {"trial_seconds": float("nan")}},
            "limits.trial_seconds: Input should be a finite",
        ),
        ({"launch": [{"command": ["x", "a\0b"]}]}, "launch.0.command.1: must not hold a NUL"),
        ({"launch": [{"command": ["x"], "env": {"A": "a\0b"}}]}, "launch.0.env.A: must not hold a NUL"),
        ({"queue": "control"}, "queue: is 'control', which serves the installation's own short tasks"),
        ({"steps": 10**400}, "steps: "),
        ({"capacity_bytes": 10**400}, "capacity_bytes: "),
        ({"launch": [{"command": ["x"], "override": "{key}"}]}, "launch.0.override: must contain"),
        ({"launch": [{"when": {}}]}, "launch.0: needs either `command`, or `refused`"),
        ({"launch": [{"command": ["x"], "refused": "old"}]}, "launch.0: needs either `command`, or"),
        ({"launch": [{"refused": "too old"}]}, "launch needs at least one adapter with a command"),
        (
            {"launch": [{"command": ["x"], "when": {"path_exists": ["a", "../b"]}}]},
            "'../b' must be a relative",
        ),
        (
            {"launch": [{"command": ["x"], "when": {"file_contains": {"/etc/passwd": "x"}}}]},
            "'/etc/passwd' must",
        ),
        ({"launch": [{"command": ["x"], "when": {"file_lacks": {"a": ""}}}]}, "file_lacks.a: "),
        ({"places": {"workspace": "/x"}}, "places: 'workspace' is a word of firstbad's own"),
        ({"renamed": [{"names": {"--x": ""}, "files": "a"}]}, "'--x' is not a configuration key"),
        ({"renamed": [{"names": {"a.b": ""}, "files": []}]}, "renamed.0.files: "),
        ({"environment": {"kind": "venv"}}, "environment: kind venv, `locked` and any overlay need `lock`"),
        ({"environment": {"kind": "interpreter"}}, "environment: kind interpreter needs `python`"),
        (
            {"environment": {"kind": "venv", "lock": "../lock"}},
            "environment.lock: '../lock' must be a",
        ),
        ({"relevant_paths": ["/etc"]}, "relevant_paths: '/etc' must be a relative path"),
        ({"device": "cuda"}, "device cuda needs gpus"),
        ({"capacity_bytes": None}, "an out_of_memory criterion needs capacity_bytes"),
        ({"name": "other"}, "name: is 'other'; rename the file"),
        ({"name": "../x"}, "name: "),
    ],
)
def test_a_bad_profile_is_refused_with_file_field_and_repair(
    tmp_path: Path, change: dict[str, Any], names: str
) -> None:
    with pytest.raises(BadCatalogueFile) as refusal:
        catalogue(tmp_path, profile={**PROFILE, **change}).profile("tiny")
    assert "tiny.yaml: " in str(refusal.value)
    assert names in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c true",
        "--upload-pack=x",
        "http://example.org/x",
        "https://me:pw@example.org/x",
        "git://x/y",
        "",
    ],
)
def test_a_url_of_another_kind_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadCatalogueFile, match="url: must"):
        catalogue(tmp_path, repository={**REPOSITORY, "url": url}).repository("nightly")


@pytest.mark.parametrize(
    "url", ["/srv/git/x", "file:///srv/git/x", "ssh://git@example.org/x", "git@example.org:team/x.git"]
)
def test_files_https_and_ssh_are_accepted(tmp_path: Path, url: str) -> None:
    assert catalogue(tmp_path, repository={**REPOSITORY, "url": url}).repository("nightly").url == url


@pytest.mark.parametrize("name", ["other", "../profiles/tiny", "", "tiny.yaml"])
def test_a_name_without_a_file_is_not_registered_and_says_which_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotRegistered, match="registered: tiny"):
        catalogue(tmp_path).profile(name)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "", "\tx"])
def test_what_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    known = catalogue(tmp_path)
    (tmp_path / "profiles" / "tiny.yaml").write_text(text)
    with pytest.raises(BadCatalogueFile, match=r"tiny\.yaml"):
        known.profile("tiny")


def test_the_digest_changes_with_what_decides_a_measurement_and_with_nothing_else(tmp_path: Path) -> None:
    digest = catalogue(tmp_path).profile("tiny").digest
    same = {"queue": "other", "description": "x", "capacity_bytes": 5, "relevant_paths": []}
    for key, value in same.items():
        assert catalogue(tmp_path, profile={**PROFILE, key: value}).profile("tiny").digest == digest, key
    differs = {
        "steps": 4,
        "limits": {"trial_seconds": 5},
        "data": {"kind": "mock"},
        "places": {"checkpoint": "/srv/x"},
        "renamed": [{"names": {"a.b": ""}, "files": "a"}],
    }
    for key, value in differs.items():
        assert catalogue(tmp_path, profile={**PROFILE, key: value}).profile("tiny").digest != digest, key


def test_a_webhook_names_a_secret_file_and_never_a_secret(tmp_path: Path) -> None:
    hook = {
        "github": "team/nightly",
        "workflows": ["CI"],
        "branches": ["main"],
        "profile": "tiny",
        "secret_file": "/run/secrets/hook",
    }
    entry = catalogue(tmp_path, repository={**REPOSITORY, "webhook": hook}).repository("nightly")
    assert entry.webhook is not None
    assert entry.webhook.secret_file == "/run/secrets/hook"
    with pytest.raises(BadCatalogueFile, match=r"webhook\.secret: no such field"):
        catalogue(tmp_path, repository={**REPOSITORY, "webhook": {**hook, "secret": "x"}}).repository(
            "nightly"
        )


@pytest.mark.parametrize(
    "line",
    [
        "description: 2026-02-30",
        "steps: " + "9" * 5000,
        "description: " + "[" * 900 + "]" * 900,
        "? [a]\n: 1",
        "description: !!python/object/apply:os.getcwd []",
    ],
    ids=["no such day", "endless number", "deep nesting", "list as a key", "a tag of Python"],
)
def test_a_file_that_breaks_the_parser_is_named_and_the_catalogue_stays_whole(
    tmp_path: Path, line: str
) -> None:
    known = catalogue(tmp_path)
    (tmp_path / "profiles" / "odd.yaml").write_text(yaml.safe_dump({**PROFILE, "name": "odd"}) + line + "\n")
    for read in (lambda: known.profile("odd"), known.profiles):
        with pytest.raises(BadCatalogueFile, match=r"odd\.yaml: cannot be read as YAML"):
            read()
    assert known.profile("tiny").name == "tiny"


@pytest.mark.parametrize("line", ["steps: 7\nsteps: 9", "limits: {trial_seconds: 5, trial_seconds: 6}"])
def test_a_key_that_stands_twice_is_an_error_and_not_the_last_one(tmp_path: Path, line: str) -> None:
    known = catalogue(tmp_path)
    path = tmp_path / "profiles" / "tiny.yaml"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(BadCatalogueFile, match=r"(?s)tiny\.yaml.*stands twice"):
        known.profile("tiny")


def test_a_merged_key_may_be_set_anew(tmp_path: Path) -> None:
    known = catalogue(tmp_path)
    path = tmp_path / "profiles" / "tiny.yaml"
    path.write_text(path.read_text() + "limits:\n  <<: {trial_seconds: 5}\n  trial_seconds: 6\n")
    assert known.profile("tiny").limits.trial_seconds == 6
