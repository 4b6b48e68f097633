"""The report's page as a real Chromium lays it out: nothing refused, nothing cut off, nothing too wide."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, sync_playwright

from bisection.rendering.html import render_html
from bisection.report import CulpritReport, Evidence, build_report, rejected_report
from tests.unit.report import samples
from tests.unit.report.samples import Sample

LONG_WORD = "NVIDIA/Megatron-Bridge@" + "x" * 200
BUILDERS: dict[str, Callable[[], Sample]] = {
    "experts": samples.experts,
    "throughput": samples.throughput,
    "pin": samples.pin,
    "set": samples.credible_set,
    "none": samples.nothing,
    "truncated": lambda: samples.experts(truncated=True),
    "hostile": lambda: samples.experts(subject=f"</code><script>document.title='owned'</script>{LONG_WORD}"),
}


def report(name: str) -> CulpritReport:
    if name == "rejected":
        return rejected_report(samples.REJECTED, Evidence())
    sample = BUILDERS[name]()
    return build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)


def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        missing = "no Chromium on this machine: install it, e.g. apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        # Chromium's own sandbox needs rights that containers lack; the pages are our own files.
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


#: Where a text of a picture leaves the picture, or a picture leaves the window; measured in the page.
OVERFLOWS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    if (svg.getBoundingClientRect().width === 0) continue;
    const box = svg.viewBox.baseVal;
    for (const text of svg.querySelectorAll('text')) {
      const own = text.getBBox();
      if (own.x < -1 || own.x + own.width > box.width + 1 || own.y + own.height > box.height + 3)
        found.push(svg.querySelector('title').textContent + ': ' + text.textContent);
    }
  }
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide > 0) found.push('the page is ' + wide + ' pixels wider than the window');
  return found;
}"""

#: Contrast of text against the nearest painted background, as WCAG 2 computes it.
CONTRASTS = """() => {
  const channel = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = rgb => 0.2126 * channel(rgb[0]) + 0.7152 * channel(rgb[1]) + 0.0722 * channel(rgb[2]);
  const numbers = text => text.match(/[0-9.]+/g).map(Number);
  const poor = [];
  for (const node of document.querySelectorAll('body *:not(svg *)')) {
    if (![...node.childNodes].some(c => c.nodeType === 3 && c.textContent.trim())) continue;
    if (!node.getClientRects().length) continue;
    let behind = node, paper = [0, 0, 0, 0];
    while (behind) {
      const painted = numbers(getComputedStyle(behind).backgroundColor);
      if (painted.length < 4 || painted[3] > 0) { paper = painted; break; }
      behind = behind.parentElement;
    }
    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(paper)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(node.textContent.trim().slice(0, 40) + ': ' + ratio.toFixed(2));
  }
  return poor;
}"""

Scheme = Literal["light", "dark"]


@pytest.mark.parametrize("name", [*BUILDERS, "rejected"])
@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "dark"), (320, "light")]
)
def test_the_page_is_laid_out_without_a_fault(
    browser: Browser, tmp_path: Path, name: str, width: int, scheme: Scheme
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_html(report(name)), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(path.as_uri())
        faults: Any = page.evaluate(OVERFLOWS)
        poor: Any = page.evaluate(CONTRASTS)
        assert page.title() != "owned"
        assert page.locator("h1").inner_text().replace("\n", " ") == report(name).summary
        shown = page.locator("figure svg:visible").count()
        assert shown == page.locator("figure").count()
    finally:
        page.close()
    # A refused style or script would be reported on the console, by the page's own policy.
    assert said == []
    assert asked == [path.as_uri()]
    assert faults == []
    assert poor == []
