"""What every format of a report says, and what hostile text cannot do in it."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from bisection.finding import Finding, FindingKind
from bisection.quantities import show_bytes
from bisection.rendering.belief_pictures import timeline
from bisection.rendering.escaping import code_span, markup, prose, terminal_safe, visible
from bisection.rendering.html import Surroundings, content_security_policy, render_html
from bisection.rendering.markdown import LONGEST_COMMENT, render_markdown
from bisection.rendering.memory_pictures import memory_bars, time_bars
from bisection.rendering.step_pictures import step_lines
from bisection.rendering.svg import NARROW, WIDE, standalone, ticks
from bisection.rendering.terminal import render_text
from bisection.rendering.trial_pictures import posterior_bars
from bisection.rendering.wording import growth_rows, moment, sentence
from bisection.report import RETENTION_NOTE, CulpritReport, Evidence, build_report, rejected_report
from bisection.revert_test import RevertResult, RevertTest
from bisection.way_back import RevertOutcome
from tests.unit.report import samples
from tests.unit.report.samples import C, K, Sample

NASTY = (
    "</title></svg></code></pre><script>alert(1)</script>",
    '" onmouseover="alert(1)" x="',
    "<img src=x onerror=alert(1)><!-- ]]> --><style>*{display:none}</style>",
    "`a` ``b`` ```c``` ` | cell \\| two",
    "[click](javascript:alert(1)) ![i](http://evil.invalid/x.png) <http://evil.invalid>",
    "@everyone fixes #1 GH-2 owner/repo#3 https://evil.invalid www.evil.invalid a@b.invalid",
    "\x1b[2J\x1b]8;;http://evil.invalid\x07link\x1b]8;;\x07\x9b31m\x00\x7f\r\n\tdone",
    "\u202etxet desrever\u202c \u2066iso\u2069 \u200b\u200d\ufeff\u2028\u2029\u061c",
    "{{ 7*7 }} {% raw %} ${x} %s {0} [bold red]markup[/]",
    "| --- | --- |\n# heading\n- item\n> quote\n1. one\n===\n---",
    "e" + "\u0301" * 200,
    "\U000e0041\U000e0042 tag characters \ufff9",
    "&lt;b&gt; &amp;#8203; &#x202e;",
    "x" * 50_000,
)

BUILDERS: dict[str, Callable[[], Sample]] = {
    "experts": samples.experts,
    "vision": samples.vision,
    "pin": samples.pin,
    "throughput": samples.throughput,
    "set": samples.credible_set,
    "none": samples.nothing,
    "untestable": samples.untestable,
    "cancelled": samples.cancelled,
}


def built(sample: Sample) -> CulpritReport:
    return build_report(sample.spec, sample.ledger, sample.finding, sample.evidence)


REPORTS = {name: built(make()) for name, make in BUILDERS.items()}
REPORTS["truncated"] = built(samples.experts(truncated=True))
REPORTS["retention"] = built(samples.retention())
REPORTS["rejected"] = rejected_report(samples.REJECTED, samples.ASKED)
PICTURES = (memory_bars, time_bars, step_lines, timeline, posterior_bars)


def hostile(text: str) -> CulpritReport:
    """A report in which everything that a stranger can write is ``text``."""
    sample = samples.experts(subject=text, author=text)
    ledger = tuple(
        replace(
            entry,
            trial=replace(entry.trial, why=text),
            measurement=entry.measurement.evolve(
                reason=text, notes=(text,), worker=text, hardware=text, patches={text: 1}, signature=text
            ),
        )
        for entry in sample.ledger
    )
    evidence = replace(
        sample.evidence,
        repository=text,
        profile=text,
        bisection=text,
        parent_config={text: text, "a": {"b": text}},
        culprit_config={text: text + "!", "a": {"b": 1}},
        revert=RevertOutcome.CONFLICTS,
        conflicts=(text,),
        notes=(text,),
        remedies=(replace(samples.REMEDIES[0], title=text, change={text: text}, cost=text, proof=text),),
    )
    finding = Finding(**{**sample.finding.__dict__, "why": text})
    return build_report(sample.spec, ledger, finding, evidence)


class Page(HTMLParser):
    """Tags, attributes and text of a page, as a browser's tokenizer sees them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.inside: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_comment(self, data: str) -> None:
        self.tags["!--"] += 1

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("text", NASTY)
def test_hostile_text_adds_no_tag_and_no_attribute_to_the_page(text: str) -> None:
    honest, attacked = Page(render_html(hostile("honest"))), Page(render_html(hostile(text)))
    assert not set(attacked.tags) - set(honest.tags)
    assert attacked.tags["script"] == attacked.tags["img"] == attacked.tags["!--"] == attacked.tags["a"] == 0
    assert attacked.tags["style"] == 1
    names = {(tag, name) for tag, name, _ in attacked.attributes}
    assert names <= {(tag, name) for tag, name, _ in honest.attributes}
    assert not [name for _, name, _ in attacked.attributes if name.startswith("on") or name == "style"]


@pytest.mark.parametrize("text", NASTY)
def test_hostile_text_stays_text_in_markdown(text: str) -> None:
    rendered = render_markdown(hostile(text))
    # GitHub's own dialect: raw HTML allowed, tables, bare links become links.
    page = Page(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(rendered))
    allowed = {"h2", "p", "blockquote", "strong", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(page.tags) <= allowed | {"ul", "li", "br", "details", "summary", "em"}
    assert len(rendered) <= LONGEST_COMMENT
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", rendered, flags=re.DOTALL)
    assert not re.search(r"(?<![\w&])[@#]\w|\bGH-\d|://|www\.", outside_code)


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("render", [render_html, render_markdown, render_text])
def test_no_format_passes_on_a_control_or_an_invisible_character(
    render: Callable[[CulpritReport], str], text: str
) -> None:
    found = {c for c in render(hostile(text)) if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")}
    assert found <= {"\n"}


@pytest.mark.parametrize("text", NASTY)
def test_hostile_text_cannot_add_a_line_to_a_terminals_report(text: str) -> None:
    lines = render_text(hostile(text)).splitlines()
    assert not [line for line in lines if line.startswith(("# heading", "> quote", "==="))]


@pytest.mark.parametrize("text", NASTY)
@pytest.mark.parametrize("draw", PICTURES)
def test_a_picture_is_well_formed_whatever_the_text(draw: Callable[[CulpritReport], str], text: str) -> None:
    root = ElementTree.fromstring(draw(hostile(text)))
    kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert kinds <= {"svg", "title", "desc", "text", "rect", "line", "polyline", "path"}


@settings(deadline=None)
@given(st.text(max_size=80))
def test_escaped_text_is_one_line_without_hidden_characters(text: str) -> None:
    shown = visible(text)
    assert "\n" not in shown
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert "<" not in markup(text)
    assert '"' not in markup(text)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_a_code_span_holds_exactly_its_text(text: str) -> None:
    tokens = MarkdownIt("commonmark").parseInline(code_span(text))[0].children or []
    assert [token.type for token in tokens] == ["code_inline"]
    assert tokens[0].content.strip() == visible(text).strip()


@settings(deadline=None)
@given(st.text(max_size=60))
def test_prose_is_read_as_it_was_written(text: str) -> None:
    html = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(f"x {prose(text)} x")
    page = Page(html)
    assert set(page.tags) <= {"p"}
    plain = "".join(page.words).replace("\u200b", "").strip()
    assert plain.split() == f"x {visible(text)} x".split()


def test_terminal_text_keeps_its_lines_and_its_indentation() -> None:
    assert terminal_safe("a\n    b\x1b[1m\nc\u202e") == "a\n    b\\x1b[1m\nc\\u202e"


@pytest.mark.parametrize("name", REPORTS)
def test_every_format_opens_with_the_verdict_in_one_sentence(name: str) -> None:
    report = REPORTS[name]
    assert render_text(report).replace("`", "").replace("\n", " ").startswith(report.summary)
    first = MarkdownIt("commonmark").render(render_markdown(report).splitlines()[0])
    assert "".join(Page(first).words).replace("\u200b", "").strip() == report.summary
    heading = re.search(r"<h1>(.*?)</h1>", render_html(report), re.DOTALL)
    assert heading is not None
    assert "".join(Page(heading[1]).words) == report.summary


def test_the_sentence_names_commit_author_confidence_component_instant_peak_and_capacity() -> None:
    assert REPORTS["experts"].summary == (
        "9fb8fb73da Keep the experts' activations to speed up backward by Mira Okafor is the first bad "
        "commit (confidence 99.7 %): experts grew by 41.2 MiB, in activations, at layer 1's backward; peak "
        "212.7 MiB against a capacity of 190.0 MiB."
    )


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_one_file_that_fetches_nothing_and_runs_nothing(name: str) -> None:
    page = Page(render_html(REPORTS[name]))
    assert page.tags["script"] == page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    assert not [value for _, kind, value in page.attributes if kind in ("src", "href", "style")]
    policies = [value for tag, kind, value in page.attributes if value.startswith("default-src")]
    assert policies == [content_security_policy()]
    assert "unsafe" not in content_security_policy()


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_can_be_read_by_ear(name: str) -> None:
    html = render_html(REPORTS[name])
    page = Page(html)
    assert ("html", "lang", "en") in page.attributes
    assert page.tags["h1"] == page.tags["main"] == 1
    levels = [int(level) for level in re.findall(r"<h([1-6])", html)]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert page.tags["caption"] == page.tags["table"]
    assert html.count("<svg ") == html.count("<desc ") == html.count('role="img"')
    ids = [value for _, kind, value in page.attributes if kind == "id"]
    assert len(ids) == len(set(ids))
    named = [
        word for _, kind, value in page.attributes if kind == "aria-labelledby" for word in value.split()
    ]
    assert set(named) <= set(ids)


def test_links_to_the_catalogue_are_made_where_its_address_is_known() -> None:
    html = render_html(REPORTS["none"], surroundings=Surroundings(explanations="/errors"))
    assert ("a", "href", "/errors/bad-end-passes") in Page(html).attributes
    assert "<https://docs.example.invalid/docs/errors/bad-end-passes.md>" in render_markdown(
        REPORTS["none"], documentation="https://docs.example.invalid/"
    )


def of_gpu(sample: Sample) -> CulpritReport:
    ledger = tuple(
        replace(e, measurement=e.measurement.evolve(device="cuda", hardware="NVIDIA H200", patches={}))
        for e in sample.ledger
    )
    return build_report(sample.spec, ledger, sample.finding, sample.evidence)


def test_a_simulated_figure_is_marked_in_the_title_block_and_at_every_picture_and_table() -> None:
    report = REPORTS["experts"]
    assert report.simulated
    html = render_html(report)
    assert "SIMULATED on CPU, not a GPU" in html.partition("<main>")[0]
    for figure in re.findall(r"<figure>.*?</figure>", html, re.DOTALL):
        if "Which commit" not in figure:  # a probability is no measurement
            assert figure.count("SIMULATED on CPU, not a GPU") >= 3  # both widths, and the caption
    for draw in (memory_bars, time_bars, step_lines, timeline):
        assert "SIMULATED on CPU, not a GPU" in draw(report)
    assert render_text(report).count("SIMULATED on CPU, not a GPU") == 3
    assert render_markdown(report).count("SIMULATED on CPU, not a GPU") == 3


@pytest.mark.parametrize("name", BUILDERS)
def test_a_gpus_figures_are_not_marked_as_simulated(name: str) -> None:
    report = of_gpu(BUILDERS[name]())
    assert not report.simulated
    for text in (render_html(report), render_markdown(report), render_text(report)):
        assert "simulated" not in text.lower()


@pytest.mark.parametrize("draw", PICTURES)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_picture_has_a_title_and_a_description_and_stands_alone(
    draw: Callable[..., str], width: int
) -> None:
    root = ElementTree.fromstring(standalone(draw(REPORTS["experts"], width=width)))
    names = [element.tag.rpartition("}")[2] for element in root]
    assert names[:3] == ["style", "title", "desc"]
    assert all((root[index].text or "").strip() for index in (1, 2))
    assert root.get("viewBox", "").startswith(f"0 0 {width} ")


def test_the_bars_are_as_long_as_the_bytes() -> None:
    root = ElementTree.fromstring(memory_bars(REPORTS["experts"]))
    memory = REPORTS["experts"].memory
    assert memory is not None
    assert memory.parent is not None
    assert memory.culprit is not None
    parts = [float(e.get("width", "0")) for e in root.iter() if "fb-part" in (e.get("class") or "")]
    half = len(parts) // 2
    ratio = sum(parts[half:]) / sum(parts[:half])
    expected = memory.culprit.allocated_bytes / memory.parent.allocated_bytes
    assert ratio == pytest.approx(expected, rel=0.005)


def test_the_timeline_has_one_mark_for_every_trial_of_the_range_and_none_for_the_revert() -> None:
    report = REPORTS["experts"]
    root = ElementTree.fromstring(timeline(report))
    tips = [
        t.text or "" for t in root.iter() if t.tag.endswith("title") and (t.text or "").startswith("trial ")
    ]
    assert len(tips) == sum(row.is_plain for row in report.trials) == len(report.trials) - 1


def test_the_last_row_of_the_timeline_is_darkest_at_the_answer() -> None:
    report = REPORTS["experts"]
    tips = [t.text or "" for t in ElementTree.fromstring(timeline(report)).iter() if t.tag.endswith("title")]
    assert [tip for tip in tips if tip.startswith("after trial 14:")][-1].endswith("% in step 17")
    lines = render_text(report).splitlines()
    (answer,) = (line for line in lines if line.startswith("trial "))
    (last,) = (line for line in lines if line.startswith("  14  "))
    assert last[answer.index("v")] == "█"


@pytest.mark.parametrize("render", [render_html, render_markdown, render_text])
def test_every_format_tells_why_a_trial_was_chosen_and_what_it_changed(
    render: Callable[[CulpritReport], str],
) -> None:
    text = re.sub(r"\s+", " ", render(REPORTS["experts"]))
    for row in REPORTS["experts"].trials[:-1]:
        assert row.why in text or row.why in text.replace("`", "")
        assert row.changed
        assert row.changed in text


@pytest.mark.parametrize("render", [render_html, render_markdown, render_text])
def test_every_format_says_whether_the_revert_mends(render: Callable[[CulpritReport], str]) -> None:
    sample = samples.experts()
    why = "Reverting it on the bad end mends it (measured: the peak is within the limit)."
    finding = sample.finding.with_revert(RevertTest(result=RevertResult.MENDS, why=why, trials=1))
    report = built(replace(sample, finding=finding))
    assert CulpritReport.from_json(report.to_json()) == report
    text = re.sub(r"[\s\\]+", " ", render(report))
    assert text.count("Reverting it on the bad end mends it") == 2  # under the headline, and at the command
    assert f"{report.commits[-1].short} without {report.suspects[0].short}" in text


def test_long_ranges_and_many_trials_still_fit_a_comment_and_a_screen() -> None:
    line = samples.commits(300, culprit=211)
    good, bad = samples.measurement(), samples.larger_images()
    plan: list[samples.Planned] = [
        (i * 5, samples.SEARCH, "x" * 300, good if i * 5 < 211 else bad) for i in range(60)
    ] * 5
    sample = samples.experts()
    report = build_report(
        replace(sample.spec, range=line),
        samples.ledger_of(line, plan),
        Finding(
            kind=FindingKind.FOUND,
            commits=(line.commits[211].hash,),
            parent=line.commits[210].hash,
            confidence=0.99,
        ),
        Evidence(),
    )
    markdown = render_markdown(report)
    assert len(markdown) <= LONGEST_COMMENT
    assert "more trials are in the JSON" in markdown
    height = float(ElementTree.fromstring(timeline(report)).get("height", "0"))
    assert height < 800


def test_hundreds_of_differing_keys_do_not_bury_the_report() -> None:
    sample = samples.experts()
    before = {f"key_{i:03}": "x" * 900 for i in range(400)}
    after = {f"key_{i:03}": "y" * 900 for i in range(400)}
    report = built(
        replace(sample, evidence=replace(sample.evidence, parent_config=before, culprit_config=after))
    )
    assert len(report.config_delta or ()) == 400
    assert len(render_markdown(report)) <= LONGEST_COMMENT
    for text in (render_html(report), render_markdown(report), render_text(report)):
        assert "360 more differences are in the JSON" in text


def test_a_remedy_under_the_limit_whose_band_is_not_is_called_unsure_and_an_illegal_one_is_set_apart() -> (
    None
):
    sample = samples.experts()
    near = replace(
        samples.REMEDIES[0],
        proven=None,
        proof="",
        estimate=replace(samples.REMEDIES[0].estimate, peak_bytes=189 * 2**20, fits=False),
    )
    report = built(replace(sample, evidence=replace(sample.evidence, remedies=(near, samples.REMEDIES[2]))))
    for text in (render_html(report), render_markdown(report), render_text(report)):
        assert "too near the limit to be sure" in text
        assert "estimated, not tried" in text.lower()
        assert "expert parallelism of 2 needs 2 ranks" in text
        assert "peak 193.3 MiB" not in text  # what is not legal is no offer


def test_axis_ticks_are_round_and_few() -> None:
    assert ticks(212.7, 8) == [0, 50, 100, 150, 200]
    assert ticks(0.569, 8) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert ticks(0.0, 8) == [0.0]
    for highest in (0.003, 0.97, 1.0, 9.9, 77.0, 1200.0, 139_000.0):
        values = ticks(highest, 6)
        assert 2 <= len(values) <= 7
        assert values[-1] <= highest


def test_a_sentence_starts_with_a_capital_but_a_hash_stays_a_hash() -> None:
    assert sentence("it failed") == "It failed."
    assert sentence("e258ba8bb3 failed") == "e258ba8bb3 failed."
    assert sentence("added too much") == "Added too much."


@pytest.mark.parametrize(
    ("stamp", "shown"),
    [
        ("2026-11-30T15:52:23.816702+00:00", "2026-11-30 15:52 UTC"),
        ("2026-03-05T03:41:00+02:00", "2026-03-05 01:41 UTC"),
        ("2026-03-05T03:41:00Z", "2026-03-05 03:41 UTC"),
        ("", ""),
        ("yesterday", "yesterday"),
    ],
)
def test_a_moment_is_told_to_the_minute_in_utc(stamp: str, shown: str) -> None:
    assert moment(stamp) == shown


def test_a_report_of_one_trial_counts_in_the_singular() -> None:
    sample = samples.nothing()
    entry = replace(
        sample.ledger[0],
        measurement=sample.ledger[0].measurement.evolve(images=1, patches={"dispatcher": 1}),
    )
    report = built(replace(sample, ledger=(entry,)))
    for text in (render_html(report), render_markdown(report), render_text(report)):
        assert "1 trial" in text.lower()
        assert "1 stand-in was used, 1 time in one trial" in text
        assert "1 real image," in text or "1 real image<" in text or "1 real image " in text
        assert not re.search(r"\b1 (?:trials|stand-ins|times|real images|commits)\b", text, re.IGNORECASE)


@pytest.mark.parametrize("name", ["untestable", "cancelled"])
def test_without_one_failing_trial_no_format_accuses_or_claims_a_refusal(name: str) -> None:
    report = REPORTS[name]
    texts = [
        render_html(report),
        render_markdown(report),
        render_text(report),
        *(d(report) for d in PICTURES),
    ]
    for text in texts:
        said = text.lower()
        for word in (
            "first bad commit",
            "refused",
            "suspects",
            "bad after",
            "confidence",
            "92.0 %",
            "or more",
        ):
            assert word not in said, word
        assert "likeliest" not in said
    assert "bad end" in texts[2]


def test_a_search_that_stopped_before_any_failure_says_how_far_it_came() -> None:
    assert "The search stopped after 2 trials: 1 good, 1 skip." in render_text(REPORTS["cancelled"])
    assert "Neither end can be judged. The bad end: mock data" in render_text(REPORTS["untestable"])


def test_bytes_of_a_trial_that_was_not_what_was_asked_are_told_to_be_that() -> None:
    for text in (render_html(REPORTS["untestable"]), render_text(REPORTS["untestable"])):
        assert "Not every trial did to its end what was asked" in text.replace("\n ", "")


@pytest.mark.parametrize("name", ["experts", "retention", "set", "vision", "truncated"])
def test_the_sentence_the_bars_and_the_table_tell_one_growth(name: str) -> None:
    report = REPORTS[name]
    regression = report.regression
    assert regression is not None
    assert regression.component is not None
    assert regression.component_delta_bytes == regression.by_component[regression.component]
    amount = show_bytes(regression.component_delta_bytes)
    at_least = "at least " if regression.truncated else ""
    assert f"{regression.component} grew by {at_least}{amount}, " in report.summary
    assert [row.growth for row in growth_rows(report) if row.named] == [f"+{amount}"]
    assert f"+{amount} {regression.component}<" in memory_bars(report)


def test_growth_that_lies_in_several_categories_is_told_to_lie_chiefly_in_the_largest() -> None:
    sample = samples.retention()
    spread = samples.measurement(delta={(C.EXPERTS, K.ACTIVATIONS): 20.0, (C.EXPERTS, K.TEMPORARY): 8.0})
    ledger = tuple(
        replace(e, measurement=spread.evolve(state=e.trial.state))
        if e.trial.state.commit == sample.finding.commits[0]
        else e
        for e in sample.ledger
    )
    summary = built(replace(sample, ledger=ledger)).summary
    assert "experts grew by 28.0 MiB, chiefly in activations, at layer 1's backward" in summary


def test_where_bytes_are_kept_from_step_to_step_the_remedies_stand_beside_a_warning() -> None:
    report = REPORTS["retention"]
    assert RETENTION_NOTE in report.notes
    assert "and that stays allocated after the step" in report.summary
    html, markdown, text = render_html(report), render_markdown(report), render_text(report, columns=400)
    opening = "Bytes that are kept from step to step outgrow any remedy"
    assert opening in html.partition('<h2 id="remedies">')[2].partition("<table")[0]
    assert opening in markdown.partition("**Remedies**")[2].partition("| remedy")[0]
    assert opening in text.partition("REMEDIES")[2].partition("- Recompute")[0]
    assert "fits" in text.partition("REMEDIES")[2]  # the estimates stay
    for render in (render_html, render_markdown, render_text):
        assert opening not in render(REPORTS["experts"])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none", "no trial was judged bad"),
        ("cancelled", "no trial was judged bad"),
        ("untestable", "no trial was judged good or bad"),
    ],
)
def test_where_git_has_nothing_to_replay_every_format_says_why(name: str, why: str) -> None:
    report = REPORTS[name]
    assert report.git_bisect_log == ""
    said = f"There is no log to replay in plain git: it needs a good and a bad commit, and {why}."
    for text in (render_html(report), render_markdown(report), render_text(report, columns=400)):
        assert said in text
        assert "git bisect replay" not in text
    assert "There is no log" not in render_text(REPORTS["rejected"])
    assert "There is no log" not in render_text(REPORTS["set"])


def test_seconds_that_no_criterion_asked_about_are_told_to_be_noisy() -> None:
    said = "Single seconds are noisy, and were not judged."
    for text in (render_html(REPORTS["experts"]), time_bars(REPORTS["experts"])):
        assert said in text
        assert "Seconds of a step (noisy, not judged)" in text
    for text in (render_html(REPORTS["throughput"]), time_bars(REPORTS["throughput"])):
        assert "noisy" not in text


@pytest.mark.parametrize("render", [render_html, render_markdown, render_text])
def test_a_rejected_request_is_told_with_what_it_asked(render: Callable[[CulpritReport], str]) -> None:
    text = render(REPORTS["rejected"])
    for word in ("b-20261130-2", "nightly", "qwen3-vl-tiny-cpu", "nightly-green to main"):
        assert word in text


@pytest.mark.parametrize("render", [render_html, render_markdown, render_text])
def test_what_a_rejected_request_asked_stays_text(render: Callable[[CulpritReport], str]) -> None:
    for nasty in NASTY:
        asked = Evidence(bisection=nasty, repository=nasty, profile=nasty, good=nasty, bad=nasty)
        text = render(rejected_report(samples.REJECTED, asked))
        page = Page(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))
        tags = page.tags if render is render_markdown else Page(text).tags
        assert not (tags["script"] or tags["img"] or tags["!--"]) or render is render_text
        assert not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]
