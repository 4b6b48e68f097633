"""A uv.lock is read through uv itself, into lines that choose no place to install from."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from workers.requirement_lock import Pin, Unbuildable, as_overrides, read_lock
from workers.uv_lock import plain_lock

COMMIT = "1effa026ff096b7fa1063ca2fba19d98be6e6cdf"
PROJECT = """
[project]
name = "nightly"
version = "1.0"
requires-python = ">=3.11"
dependencies = ["alpha", "from-git", "in-the-tree"]

[dependency-groups]
dev = ["linter"]

[tool.uv.sources]
from-git = { git = "https://example.invalid/from-git" }
in-the-tree = { path = "vendor/in-the-tree", editable = true }
"""
LOCK = f"""
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "alpha"
version = "1.0"
source = {{ registry = "https://evil.example/simple" }}
dependencies = [{{ name = "beta", marker = "sys_platform == 'linux'" }}]
wheels = [{{ url = "https://evil.example/alpha-1.0-py3-none-any.whl", hash = "sha256:{"0" * 64}" }}]

[[package]]
name = "beta"
version = "2.0"
source = {{ registry = "https://evil.example/simple" }}
wheels = [{{ url = "https://evil.example/beta-2.0-py3-none-any.whl", hash = "sha256:{"0" * 64}" }}]

[[package]]
name = "from-git"
version = "0.2.0"
source = {{ git = "https://example.invalid/from-git#{COMMIT}" }}

[[package]]
name = "in-the-tree"
version = "0.1"
source = {{ editable = "vendor/in-the-tree" }}

[[package]]
name = "linter"
version = "9.0"
source = {{ registry = "https://evil.example/simple" }}
wheels = [{{ url = "https://evil.example/linter-9.0-py3-none-any.whl", hash = "sha256:{"0" * 64}" }}]

[[package]]
name = "nightly"
version = "1.0"
source = {{ editable = "." }}
dependencies = [{{ name = "alpha" }}, {{ name = "from-git" }}, {{ name = "in-the-tree" }}]

[package.dev-dependencies]
dev = [{{ name = "linter" }}]

[package.metadata]
requires-dist = [
    {{ name = "alpha" }},
    {{ name = "from-git", git = "https://example.invalid/from-git" }},
    {{ name = "in-the-tree", editable = "vendor/in-the-tree" }},
]

[package.metadata.requires-dev]
dev = [{{ name = "linter" }}]
"""


def tree(**files: str) -> Mapping[str, str]:
    return {"uv.lock": LOCK, "pyproject.toml": PROJECT} | files


def test_what_the_project_needs_becomes_plain_lines() -> None:
    text = plain_lock("uv.lock", tree().get)
    assert text is not None
    assert read_lock(text, "uv.lock") == (
        Pin(name="alpha", version="1.0"),
        Pin(name="beta", version="2.0", marker=" ; sys_platform == 'linux'"),
        Pin(name="from-git", version="0.2.0+git.1effa026"),
    )
    assert "evil" not in text


def test_a_commit_of_a_git_package_is_a_version_of_its_own() -> None:
    moved = plain_lock("uv.lock", tree(**{"uv.lock": LOCK.replace(COMMIT, "2" * 40)}).get)
    assert moved is not None
    assert as_overrides(read_lock(moved, "uv.lock"))["from-git"] == "0.2.0+git.22222222"


def test_other_locks_are_handed_on_as_they_are() -> None:
    assert plain_lock("requirements.lock", {"requirements.lock": "alpha==1\n"}.get) == "alpha==1\n"
    assert plain_lock("requirements.lock", lambda _: None) is None


def test_a_lock_below_the_top_takes_the_project_beside_it() -> None:
    files = {"train/uv.lock": LOCK, "train/pyproject.toml": PROJECT}
    text = plain_lock("train/uv.lock", files.get)
    assert text is not None
    assert "alpha==1.0" in text


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"uv.lock": LOCK}, "no pyproject.toml beside it"),
        (tree(**{"uv.lock": "version = ["}), "uv"),
        (tree(**{"pyproject.toml": "[project]\nname = 3\n"}), "uv export"),
    ],
)
def test_what_uv_cannot_read_is_the_states_fault(files: Mapping[str, str], says: str) -> None:
    with pytest.raises(Unbuildable, match=says):
        plain_lock("uv.lock", files.get)


def test_a_lock_that_its_project_left_behind_is_refused_where_it_must_be_current() -> None:
    own = """
[[package]]
name = "nightly"
version = "1.0"
source = { editable = "." }

[package.metadata]
requires-dist = [
    { name = "alpha", specifier = ">=1.0,<2" },
    { name = "linter", marker = "extra == 'dev'" },
]
"""
    project = '[project]\nname = "Nightly"\nversion = "1.0"\ndependencies = ["Alpha<2,>=1.0"]\n'
    tree = {"uv.lock": f"version = 1\nrequires-python = '>=3.11'\n{own}", "pyproject.toml": project}
    assert plain_lock("uv.lock", tree.get) is not None
    for moved in ('"alpha<3,>=1.0"', '"Alpha<2,>=1.0", "linter"'):
        tree["pyproject.toml"] = project.replace('"Alpha<2,>=1.0"', moved)
        with pytest.raises(
            Unbuildable, match=r"was not made from its pyproject\.toml, which asks for"
        ) as error:
            plain_lock("uv.lock", tree.get, must_be_current=True)
        assert error.value.step == "checking that the lock is current"
