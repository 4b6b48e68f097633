"""A sweep's report in every format: what is said, and that words of strangers stay words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from bisection.rendering.sweep_html import render_sweep_html
from bisection.rendering.sweep_markdown import render_sweep_markdown
from bisection.rendering.sweep_pictures import sweep_picture
from bisection.rendering.sweep_terminal import render_sweep_text
from bisection.report_parts import Simulation
from bisection.sweep_report import PointResult, Standing, SweepReport, Swept
from memory_models.variations import Axis, VariedEstimate

GIB = 2**30
HOSTILE = "<script>alert(1)</script> ]( | `x` \u202e"


def point(words: str, standing: Standing, **fields: Any) -> PointResult:
    estimate = VariedEstimate(
        allocated_bytes=40 * GIB, low_bytes=38 * GIB, high_bytes=42 * GIB, device_bytes=44 * GIB
    )
    values = {"is_base": False, "estimate": estimate, "fits": "yes", **fields}
    return PointResult(
        settings={Axis.MICRO_BATCH: words}, changes={"train.micro_batch_size": 1}, standing=standing, **values
    )


MEASURED: dict[str, Any] = {
    "peak_bytes": 41 * GIB,
    "headroom_bytes": 38 * GIB,
    "off_bytes": -GIB,
    "trainable": {"experts": 5, "decoder": 7},
}
REPORT = SweepReport(
    swept=Swept(
        sweep="0123456789abcdef", repository="training", profile="small", at="main", commit="a" * 40,
        subject=HOSTILE, started_at="2026-11-30T12:00:00.000000+00:00",
    ),
    axes={Axis.MICRO_BATCH: ("1", "2", "4", "8", "16", "32")},
    capacity_bytes=80 * GIB,
    batch=64,
    points=(
        point("1", Standing.MEASURED, is_base=True, rate=100.0, place=2, **MEASURED),
        point("2", Standing.MEASURED, rate=150.0, place=1, **MEASURED),
        point("4", Standing.OUT_OF_MEMORY, least_bytes=85 * GIB, why="the allocator refused 5.00 GiB"),
        point("8", Standing.REFUSED, why=f"AssertionError: {HOSTILE}"),
        point("16", Standing.MEASURED, rate=900.0, incomparable="a step holds 20 image tokens", **MEASURED),
        point("32", Standing.ILLEGAL, estimate=VariedEstimate(why_not="no"), fits="", why="no"),
    ),
    best=1,
    best_why="It is the fastest of 2 comparable points.",
    ended=True,
)  # fmt: skip


def test_the_json_reads_back_as_the_same_report() -> None:
    assert SweepReport.from_json(REPORT.to_json()) == REPORT
    with pytest.raises(ValueError, match="not known here"):
        SweepReport.from_json({**REPORT.to_json(), "version": 99})


@pytest.mark.parametrize("render", [render_sweep_text, render_sweep_markdown, render_sweep_html])
def test_every_format_tells_the_answer_the_figures_and_what_was_refused(render: Any) -> None:
    shown = re.sub(r"\s+", " ", render(REPORT).replace("&#39;", "'").replace("\\", ""))
    for words in (
        "Best: micro batch 2",
        "150.0",
        "41.00 GiB",
        "40.00 GiB, fits",
        "-2.4 %",
        "38.00 GiB",
        "over 85.00 GiB",
        "place 2",
        "not ranked",
        "a step holds 20 image tokens",
        "refused by the code",
        "not legal, not run",
        "every point keeps the global batch of 64",
        "12",
    ):
        assert words in shown, words


def test_words_of_strangers_stay_words() -> None:
    page = render_sweep_html(REPORT)
    assert "<script" not in page
    assert "\u202e" not in page + render_sweep_markdown(REPORT) + render_sweep_text(REPORT)
    assert "<script" not in re.sub(r"`+[^`]*`+", "", render_sweep_markdown(REPORT).replace("&lt;", ""))


@pytest.mark.parametrize("width", [760, 350])
def test_the_picture_is_well_formed_stays_inside_and_shows_each_point(width: int) -> None:
    picture = sweep_picture(REPORT, width=width)
    root = ElementTree.fromstring(picture)
    tips = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")][1:]
    assert sum("useful tokens a second" in tip for tip in tips) == 3
    assert sum("estimated 40.00 GiB" in tip for tip in tips) == 4
    assert sum("the allocator refused" in tip for tip in tips) == 1
    for element in root.iter("{http://www.w3.org/2000/svg}line"):
        assert 0 <= float(element.attrib["x1"]) <= width


def test_figures_that_no_gpu_made_say_so() -> None:
    simulated = replace(REPORT, simulation=Simulation(devices=("cpu",), notes=("Seconds are a CPU's.",)))
    for render in (render_sweep_text, render_sweep_markdown, render_sweep_html):
        assert "SIMULATED on CPU, not a GPU" in render(simulated)
    assert "SIMULATED" in sweep_picture(simulated)


def test_a_sweep_that_is_not_measured_yet_has_no_picture_and_says_so() -> None:
    empty = SweepReport(swept=Swept(profile="small", at="main"), axes=REPORT.axes, capacity_bytes=None)
    assert sweep_picture(empty) == ""
    assert "Nothing is measured yet." in render_sweep_text(empty)
    assert "no points yet" in render_sweep_html(empty)
