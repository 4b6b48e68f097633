"""The report as a mail: read back with the standard library, as a mail program would."""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from html.parser import HTMLParser

import pytest

from bisection.rendering.mail import render_mail
from bisection.rendering.terminal import render_text
from tests.unit.report.test_rendering import REPORTS

_VOID = {"meta", "br"}


class Page(HTMLParser):
    """What is open, what was seen, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_a_mail_holds_the_text_and_a_page_that_fetches_and_runs_nothing(name: str) -> None:
    report = REPORTS[name]
    content = render_mail(report)
    assert max(len(line) for line in content.splitlines()) <= 998  # RFC 5322, section 2.1.1
    message = message_from_bytes(content, policy=policy.default)
    assert message.get_content_type() == "multipart/alternative"
    plain, page = message.iter_parts()
    assert plain.get_content().split() == render_text(report, columns=78).split()
    parser = Page()
    parser.feed(page.get_content())
    parser.close()
    assert parser.open == []
    assert not parser.seen & {"script", "style", "svg", "img", "link", "iframe", "form", "a"}
    assert not parser.attributes & {"src", "href", "onclick", "background"}
    assert "url(" not in page.get_content()
    sentence = "".join(run.text for run in report.headline)
    assert sentence[:40] in parser.text
    assert message["Subject"]
    assert not re.search(r"[\r\n]", message["Subject"])


def test_a_mail_of_a_memory_regression_shows_both_bars_and_the_named_component() -> None:
    report = REPORTS["experts"]
    _, page = message_from_bytes(render_mail(report), policy=policy.default).iter_parts()
    html = page.get_content()
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%;background", html)]
    assert report.memory is not None
    assert report.memory.parent is not None
    assert report.memory.culprit is not None
    share = 100 * report.memory.parent.allocated_bytes / report.memory.culprit.allocated_bytes
    assert abs(sum(widths) - 100 - share) < 1.5
