"""Reports of slow climbs and of further steps, in every format."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bisection.rendering.html import render_html
from bisection.rendering.markdown import render_markdown
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport, Evidence, build_report
from tests.unit.search.drawn_lines import drive, hash_of
from tests.unit.search.drawn_values import DrawnValues, climb, steps_at

FORMATS: list[Callable[[CulpritReport], str]] = [render_html, render_markdown, render_text]


def report_of(line: DrawnValues) -> CulpritReport:
    spec = line.specification()
    finding, ledger = drive(line, spec)
    return build_report(spec, ledger, finding, Evidence(bisection="b1", repository="r", profile="p"))


def flat(text: str) -> str:
    """Without the breaks and the escapes of a format."""
    return " ".join(text.replace("\\", "").split())


@pytest.mark.parametrize("render", FORMATS)
def test_a_climb_blames_no_commit_and_tells_its_numbers(render: Callable[[CulpritReport], str]) -> None:
    report = report_of(DrawnValues(climb(61, 10), 65))
    assert report.summary.startswith("No single commit is to blame (confidence ")
    assert "the peak climbs little by little, by 10.00 GiB over 60 commits" in report.summary
    assert report.compared == (hash_of(0), hash_of(60))
    text = flat(render(report))
    assert "by 10.00 GiB over 60 commits" in text
    assert "the largest that was measured" in text
    assert "First bad commit: one of" not in text
    assert CulpritReport.from_json(report.to_json()) == report


@pytest.mark.parametrize("render", FORMATS)
def test_a_second_step_is_counted_on_top_and_told_below(render: Callable[[CulpritReport], str]) -> None:
    report = report_of(DrawnValues(steps_at(61, (20, 6), (45, 6)), 65))
    assert "is the first bad commit (confidence " in report.summary
    assert ", with 1 more step beside it" in report.summary
    assert f"The peak also rises by 6.00 GiB at {hash_of(45)[:10]}, confirmed" in flat(render(report))
    assert [step["commits"] for step in report.to_json()["finding"]["others"]] == [[hash_of(45)]]


def test_a_report_of_an_earlier_release_is_read() -> None:
    report = report_of(DrawnValues(steps_at(31, (20, 10)), 65))
    row = report.to_json()
    del row["finding"]["others"]
    assert CulpritReport.from_json(row) == report
