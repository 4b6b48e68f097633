"""The reference of the command line holds every command with every option."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from firstbad.command_line import app

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"


def commands(command: object, words: str = "firstbad") -> dict[str, list[str]]:
    """Words of each command to its options, hidden ones left out."""
    below = getattr(command, "commands", None)
    if below is None:
        parameters = getattr(command, "params", [])
        options = [p for p in parameters if p.param_type_name == "option" and not p.hidden]
        return {words: [option.opts[0] for option in options if option.opts[0] != "--help"]}
    found: dict[str, list[str]] = {}
    for name, one in below.items():
        if not one.hidden:
            found |= commands(one, f"{words} {name}")
    return found


@pytest.mark.parametrize(("words", "options"), sorted(commands(get_command(app)).items()))
def test_a_command_is_in_the_reference_with_its_options(words: str, options: list[str]) -> None:
    rows = [
        line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{words}")
    ]
    row = next((row for row in rows if row.split("`")[1].split()[: len(words.split())] == words.split()), "")
    assert row, f"docs/reference/command-line.md has no row for {words}"
    assert [option for option in options if f"`{option}`" not in row] == []
