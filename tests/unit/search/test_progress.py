"""The answer so far: what is told of a search before it has ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bisection.criteria import CriterionKind
from bisection.progress import LONGEST_PLAYED, progress
from bisection.search import Search
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of


def test_before_anything_failed_nobody_is_accused() -> None:
    line = DrawnLine(drawing="." * 30 + "X" + "." * 10)
    spec = line.specification()
    told = progress(spec, (), ())
    assert not told.failed
    assert told.why == "Nothing has failed so far, so nothing tells one commit from another."
    assert (told.spent.trials, told.spent.seconds) == (0, 0)
    assert told.remaining is not None
    assert told.remaining.seconds is None  # nothing was timed yet
    assert "likeliest" not in Search(spec).answer_now("It was cancelled.", "cancelled").why


@pytest.mark.parametrize(
    "kind", [CriterionKind.OUT_OF_MEMORY, CriterionKind.PEAK_MEMORY, CriterionKind.CRASH]
)
def test_what_is_expected_still_shrinks_to_nothing_and_the_cost_grows(kind: CriterionKind) -> None:
    line = DrawnLine(drawing="." * 25 + "X" + "." * 15, kind=kind)
    spec = replace(line.specification(), parallel=2, workers=2, gpus_per_trial=8)
    finding, ledger = drive(line, spec)
    told = [progress(spec, ledger[:count], ()) for count in range(len(ledger) + 1)]
    remaining = [one.remaining.trials for one in told if one.remaining]
    assert remaining[0] > len(ledger) / 3
    assert remaining[-1] == 0
    assert remaining[0] == max(remaining)
    assert [one.spent.trials for one in told] == list(range(len(ledger) + 1))
    assert told[-1].spent.gpu_hours == pytest.approx(len(ledger) * 30 * 8 / 3600)
    assert told[-1].suspects[0].hash == finding.commits[0] == hash_of(25)
    assert told[-1].credible == 1
    assert json.loads(json.dumps(told[3].to_json()))["after"] == 3


def test_trials_that_run_are_expected_too_but_not_twice() -> None:
    line = DrawnLine(drawing="." * 25 + "X" + "." * 15)
    spec = replace(line.specification(), parallel=3, workers=3)
    _, ledger = drive(line, spec)
    search = Search.replay(spec, ledger[:4])
    running = search.next(3)
    assert isinstance(running, tuple)
    idle, busy = progress(spec, ledger[:4], ()).remaining, progress(spec, ledger[:4], running).remaining
    assert idle is not None
    assert busy is not None
    assert abs(busy.trials - idle.trials) <= 2


def test_a_line_that_is_too_long_to_play_is_told_without_a_forecast() -> None:
    line = DrawnLine(drawing="." * (LONGEST_PLAYED + 5) + "X")
    assert progress(line.specification(), (), ()).remaining is None


def test_one_suspect_is_told_in_the_singular() -> None:
    line = DrawnLine(drawing=".X")
    spec = line.specification()
    _, ledger = drive(line, spec)
    for count in range(len(ledger)):
        asked = Search.replay(spec, ledger[:count]).next(1)
        said = [progress(spec, ledger[:count], ()).why]
        said += [trial.why for trial in asked] if isinstance(asked, tuple) else [asked.why]
        for sentence in said:
            assert "1 commits" not in sentence
            assert "1 suspects" not in sentence
            assert "1 trials" not in sentence
