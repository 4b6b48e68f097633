"""What the documents promise is there: files behind links, commands behind words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
_COMMAND = re.compile(r"(?:^|[`/\s])firstbad ([a-z][a-z-]+)")
_TARGET = re.compile(r"`?make ([a-z][a-z-]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_command_that_a_document_names_exists() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "firstbad", "--help"], capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"^\W*([a-z][a-z-]+) ", shown, re.MULTILINE))
    in_code = [
        command
        for page in PAGES
        for block in re.findall(r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL)
        for command in _COMMAND.findall(block)
    ]
    assert in_code
    assert sorted(set(in_code) - known - {"is", "worker"}) == []


def test_every_make_target_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for block in re.findall(r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL)
        for target in _TARGET.findall(block)
    }
    assert named - targets == set()


def test_every_test_that_the_attack_table_names_exists() -> None:
    rows = (ROOT / "docs" / "reference" / "attacks.md").read_text(encoding="utf-8").splitlines()
    named = [name for row in rows for name in re.findall(r"\| `(test_\w+)` \|$", row)]
    known = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 60
    assert sorted(set(named) - known) == []
    tricks = [row for row in rows if row.startswith("| ") and not row.startswith(("| **", "| trick"))]
    assert len(tricks) == len(named)  # no trick without its test


def test_the_stdlib_bisect_is_not_shadowed() -> None:
    """`bisect/` has no __init__.py: -S keeps a preloaded standard bisect from hiding the fault."""
    code = "import random, bisect; assert hasattr(bisect, 'insort')"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)
