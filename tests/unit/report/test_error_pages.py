"""The catalogue in docs/errors has a page for every name that the rooms link to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bisection.measurement import Outcome
from service.problems import KINDS

ROOT = Path(__file__).parents[3]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "errors").glob("*.md")}
INDEX = PAGES.pop("index")

#: How the rooms name a page: `problem="name"`, `rejected(why, "name")`, a table from errors to names.
_NAMED = re.compile(
    r"problem(?:: str)?\s*=\s*\"([a-z-]+)\""
    r"|rejected\([^\n]*,\s*\"([a-z-]+)\"\)"
    r"|best_answer\([^\n]*,\s*\"([a-z-]+)\"\)"
    r"|^    [A-Z]\w+: \"([a-z]+-[a-z-]+)\",$",
    re.MULTILINE,
)


def names_in_sources() -> set[str]:
    found: set[str] = set()
    for room in ("bisect/bisection", "workers", "service", "firstbad"):
        for path in (ROOT / room).rglob("*.py"):
            for match in _NAMED.finditer(path.read_text(encoding="utf-8")):
                found |= {name for name in match.groups() if name}
    return found


def test_every_problem_that_a_finding_can_name_has_a_page() -> None:
    named = names_in_sources()
    assert {"unknown-ref", "budget-spent", "bad-end-passes", "unknown-configuration-key"} <= named
    assert named <= set(PAGES)


def test_every_outcome_has_a_page() -> None:
    assert {outcome.value.replace("_", "-") for outcome in Outcome} <= set(PAGES)


def test_every_error_of_the_api_has_a_page_with_its_title_and_status() -> None:
    for kind in KINDS.values():
        assert PAGES[kind.name].startswith(f"# {kind.title}\n"), kind.name
        assert f"Status {kind.status}." in PAGES[kind.name], kind.name


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_tells_cause_evidence_and_repair_and_is_in_the_index(name: str) -> None:
    text = PAGES[name]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Cause", "Evidence", "Repair"]
    assert all(len(part.strip()) > 15 for part in re.split(r"^## .*$", text, flags=re.MULTILINE))
    assert f"`{name}`" in text
    assert f"]({name}.md)" in INDEX


def test_the_index_links_to_nothing_that_is_not_there() -> None:
    for text in (INDEX, *PAGES.values()):
        linked = {target.removesuffix(".md") for target in re.findall(r"\]\(([a-z-]+\.md)\)", text)}
        assert linked <= {*PAGES, "index"}
