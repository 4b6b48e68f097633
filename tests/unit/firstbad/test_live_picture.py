"""What `watch` and `run` show of a moment."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from firstbad.asking import exit_of
from firstbad.watching import picture, state_words, strip

INNER = "f" * 40


def trial(ordinal: int, position: int | None, verdict: str | None, **more: Any) -> dict[str, Any]:
    return {
        "ordinal": ordinal,
        "position": position,
        "verdict": verdict,
        "status": "done" if verdict else "running",
        "commit": f"{ordinal:040x}",
        "subject": f"change {ordinal}",
        "pins": {},
        "packages": {},
        "purpose": "search",
        "verdict_why": "",
        "progress": "step 2",
        "why": "",
        "seconds": 1.5,
        **more,
    }


def moment(*trials: dict[str, Any]) -> dict[str, Any]:
    told = {
        "level": 0,
        "failed": True,
        "why": "So far 2 suspects remain.",
        "suspects": [{"hash": f"{1:040x}", "probability": 0.75}],
        "spent": {"trials": 2, "seconds": 3.0, "gpu_hours": None},
        "remaining": {"trials": 4, "seconds": 6.0, "gpu_hours": None},
    }
    return {
        "id": "b",
        "status": "running",
        "plan": {"commits": 10, "states": 11},
        "hints": [],
        "trials": list(trials),
        "answer_so_far": told,
    }


def test_the_range_shows_verdicts_and_what_runs_where_they_are() -> None:
    shown = strip(moment(trial(0, 10, "bad"), trial(1, 0, "good"), trial(2, 5, None)), 80).plain
    assert shown == "good +····▸····x bad"
    narrow = strip(moment(trial(0, 10, "bad"), trial(1, 0, "good")), 17).plain
    assert narrow == "good +···x bad"


def test_a_moment_names_suspects_inner_commits_cost_and_time_left() -> None:
    inside = trial(1, None, "bad", pins={"3rdparty/Megatron-LM": INNER}, packages={"flash-attn": "2.7"})
    console = Console(width=120, record=True, force_terminal=False)
    console.print(picture(moment(trial(0, 10, "bad"), inside), 120))
    text = console.export_text()
    assert f"Megatron-LM@{INNER[:10]}" in text
    assert "flash-attn==2.7" in text
    assert "75.0 %" in text
    assert "about 4 trials, 6 s to come" in text
    assert state_words(trial(3, 1, None)) == f"{3:040x}"[:10]


@pytest.mark.parametrize(
    ("finding", "code"), [("found", 0), ("set", 4), ("none", 4), ("rejected", 2), (None, 0)]
)
def test_a_script_can_tell_ends_apart(finding: str | None, code: int) -> None:
    assert exit_of(finding) == code
