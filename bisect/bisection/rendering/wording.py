"""What all formats of a report say alike: names, the stamp, the rows of the tables.

Plain text, not yet escaped for any format; what strangers wrote is marked by the caller's place for
it. No markup here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from bisection.commits import Commit
from bisection.configuration_delta import show_value
from bisection.criteria import Criterion, CriterionKind, Verdict
from bisection.descent_words import level_lines
from bisection.finding import MADE, FindingKind, LevelKind
from bisection.headline import COMPONENT_NAMES as COMPONENT_NAMES
from bisection.quantities import counted, show_bytes, show_confidence
from bisection.regression import RegressionKind
from bisection.rendering.escaping import visible
from bisection.report import CulpritReport
from bisection.report_parts import PinKind
from memory_models.breakdown import Activity, Component

_HASH_FIRST = re.compile(r"[0-9a-f]{7,40}\b")

ACTIVITY_NAMES = {
    Activity.VISION: "vision",
    Activity.PROJECTOR: "projector",
    Activity.DECODER: "decoder",
    Activity.EXPERTS: "experts",
    Activity.DISPATCH: "dispatch",
    Activity.EMBEDDING_AND_LOSS: "embedding and loss",
    Activity.OPTIMIZER: "optimizer",
    Activity.DATA: "data",
    Activity.IDLE: "idle",
}
OTHER_ANSWERS = {
    "no-culprit": "nothing in the range is to blame",
    "good-end-is-bad": "the good end is already bad",
}
KIND_WORDS = {
    RegressionKind.IMAGE_LOAD: "a larger image load",
    RegressionKind.FRAGMENTATION: "fragmentation of the allocator",
    RegressionKind.RETENTION: "bytes kept from step to step",
    RegressionKind.FIRST_STEP: "the first step alone",
    RegressionKind.LAYOUT: "the weights of this rank, and the states that follow them",
    RegressionKind.STATES: "gradients and optimizer states of as many weights",
    RegressionKind.GRAPH_CAPTURE: "captured CUDA graphs",
    RegressionKind.LOSS: "logits and loss",
    RegressionKind.IMBALANCE: "uneven routing to the experts",
    RegressionKind.ACTIVATIONS: "activations",
    RegressionKind.ENVIRONMENT: "the environment",
    RegressionKind.THROUGHPUT: "time",
    RegressionKind.FAILURE: "a failure",
}
PARTIAL = (
    "Not every trial did to its end what was asked: a peak is that of what ran, and may not be the job's."
)
VERDICT_SIGNS = {Verdict.GOOD: "●", Verdict.BAD: "■", Verdict.SKIP: "▽", Verdict.RETRY: "×"}


def title(report: CulpritReport) -> str:
    """A few words for the title of a page or a mail."""
    if report.nothing_known:
        return "Nothing is known yet"
    if report.finding.problem == "drift":
        return f"A slow climb over {len(report.suspects)} commits"
    return {
        FindingKind.FOUND: f"First bad commit: {report.culprit.short if report.culprit else ''}",
        FindingKind.SET: f"First bad commit: one of {len(report.suspects)}",
        FindingKind.NONE: "No commit was named",
        FindingKind.REJECTED: "The bisection was not carried out",
    }[report.finding.kind]


def where_words(report: CulpritReport) -> str:
    """The heading over the table of components or activities."""
    if report.regression is None:
        return "Memory at both ends"
    slow = report.regression.kind is RegressionKind.THROUGHPUT
    return "Where the time went" if slow else "Where the memory went"


def descent(report: CulpritReport) -> list[tuple[str, tuple[str, ...], str]]:
    """What was found inside the culprit, a level each: a heading, names (a stranger's), and why."""
    return [level_lines(level) for level in report.finding.descent]


def retraction(report: CulpritReport) -> str:
    """That the result was taken back, by whom and why; "" while it stands. The reason is anybody's text."""
    told = report.retraction
    if told is None:
        return ""
    day = told.at[:16].replace("T", " ")
    return f"This result was retracted by {told.by} on {day} UTC, do not act on it: {told.reason}"


def stamp(report: CulpritReport) -> str:
    """What stands next to every figure that no GPU made; "" where one did."""
    if report.simulation is None:
        return ""
    devices = " and ".join(device.replace("_", " ").upper() for device in report.simulation.devices)
    return f"SIMULATED on {devices}, not a GPU"


NOT_MODELLED = "What a dry run does not see"


def stand_ins(report: CulpritReport) -> str:
    """How much code was replaced so that the job ran without a GPU; "" if none was."""
    patches = report.simulation.patches if report.simulation else {}
    if not patches:
        return ""
    were = "was" if len(patches) == 1 else "were"
    times = counted(sum(patches.values()), "time")
    return f"{counted(len(patches), 'stand-in')} {were} used, {times} in one trial"


def sides(report: CulpritReport) -> tuple[str, str]:
    """Names of the two states that are compared."""
    if report.finding.kind is FindingKind.FOUND:
        return "last good", "culprit"
    if report.finding.kind is FindingKind.SET and not report.nothing_known:
        return "good before", "bad after"
    return "good end", "bad end"


def commit_words(commit: Commit) -> str:
    return f"{commit.short} {visible(commit.subject, limit=120)}"


def step_words(report: CulpritReport, step: Commit) -> str:
    """A step of the range; one that is no commit has no hash that would mean anything."""
    made = report.subject is not None and report.subject.line in MADE
    return visible(step.subject, limit=120) if made else commit_words(step)


def why(report: CulpritReport) -> str:
    """What the answer rests on, and what would show that it is wrong; "" where the headline says it."""
    if report.finding.kind not in (FindingKind.FOUND, FindingKind.SET):
        return ""
    if report.nothing_known and report.finding.problem != "all-untestable":
        counts = Counter(str(row.verdict) for row in report.trials)
        said = ", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v])
        # The finding's own words name the likeliest of commits that nothing speaks against.
        return f"The search stopped after {trials_words(report)}{f': {said}' if said else ''}."
    tested = visible(report.finding.revert.why, limit=1_000) if report.finding.revert else ""
    parts = (sentence(visible(report.finding.why, limit=4_000)), tested, disproof(report))
    return " ".join(part for part in parts if part)


def disproof(report: CulpritReport) -> str:
    """What would show that the answer is wrong."""
    if report.finding.kind is FindingKind.FOUND:
        return "It would be disproved by a run of the commit that passes, or of its parent that fails alike."
    if report.finding.problem == "drift":
        return "It would be disproved by two neighbours among them that differ by a quarter of the climb."
    if report.finding.kind is FindingKind.SET and not report.nothing_known:
        return "A run of any of these commits narrows the set."
    return ""


def sentence(text: str) -> str:
    """With a capital first, unless a hash comes first, and a full stop last."""
    starts_with_hash = _HASH_FIRST.match(text) is not None
    shown = (text if starts_with_hash else text[:1].upper() + text[1:]).rstrip()
    return shown if shown.endswith((".", "!", "?")) else f"{shown}."


def moment(stamp: str) -> str:
    """A stored time as people read it: 2026-11-30 15:52 UTC; anything else as it is."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return visible(stamp)
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if when.tzinfo else visible(stamp)


def _metric_limit(criterion: Criterion) -> str:
    return "the middle of both ends" if criterion.threshold is None else f"{criterion.threshold:g}"


def facts(report: CulpritReport) -> list[tuple[str, str, bool]]:
    """Name, value, and whether the value is code."""
    subject, asked = report.subject, report.asked
    words = f"{asked.good or '?'} to {asked.bad or '?'}" if asked.good or asked.bad else ""
    if subject is None:
        rows = [
            ("Repository", asked.repository, True),
            ("Profile", asked.profile, True),
            ("Asked", words, True),
            ("Bisection", asked.bisection, True),
        ]
        return [row for row in rows if row[1]]
    criterion = subject.criterion
    limit = {
        CriterionKind.OUT_OF_MEMORY: f"peak above a capacity of {show_bytes(criterion.capacity_bytes or 0)}",
        CriterionKind.PEAK_MEMORY: f"peak above {show_bytes(int(criterion.threshold or 0))}",
        CriterionKind.THROUGHPUT: f"fewer than {criterion.threshold or 0:,.1f} useful tokens a second",
        CriterionKind.CRASH: "the failure of the bad end",
        CriterionKind.METRIC_ABOVE: f"a number above {_metric_limit(criterion)}",
        CriterionKind.METRIC_BELOW: f"a number below {_metric_limit(criterion)}",
    }[criterion.kind]
    seconds = sum(row.seconds for row in report.trials if not row.taken_from)
    rows = [
        ("Repository", subject.repository, True),
        ("Profile", subject.profile, True),
        ("Bad means", limit, False),
        ("Asked", words, True),
        ("Range", f"{subject.good[:8]}..{subject.bad[:8]}", True),
        (
            "Size",
            f"{counted(subject.commits, 'commit')}, {trials_words(report)}, {duration(seconds)} of trials",
            False,
        ),
        ("Ended", moment(subject.finished_at), False),
        ("Bisection", subject.bisection, True),
    ]
    return [row for row in rows if row[1]]


def no_replay(report: CulpritReport) -> str:
    """Why there is no log for git to replay; "" where there is one, or where nothing was tried."""
    if report.git_bisect_log or not report.trials:
        return ""
    if report.subject is not None and report.subject.line not in (LevelKind.COMMITS, LevelKind.WIDENED):
        return "There is no log to replay in plain git: what was searched is no line of its commits."
    seen = {row.verdict for row in report.trials if row.is_plain and row.position is not None}
    missing = [str(verdict) for verdict in (Verdict.GOOD, Verdict.BAD) if verdict not in seen]
    why_not = f"no trial was judged {' or '.join(missing)}" if missing else "the trials contradict each other"
    return f"There is no log to replay in plain git: it needs a good and a bad commit, and {why_not}."


def trials_words(report: CulpritReport) -> str:
    taken = sum(bool(row.taken_from) for row in report.trials)
    words = counted(len(report.trials), "trial")
    return f"{words} ({taken} taken over from other bisections)" if taken else words


def trials_left_out(count: int) -> str:
    """A sentence on trials that do not fit; "" if all do."""
    return (
        f"{counted(count, 'more trial')} {'is' if count == 1 else 'are'} in the JSON and on the page."
        if count
        else ""
    )


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, kw_only=True)
class GrowthRow:
    """One line of the table of components or activities, in words."""

    name: str
    before: str
    after: str
    growth: str
    named: bool  #: the one that is blamed


def growth_rows(report: CulpritReport) -> list[GrowthRow]:
    """By activity for a throughput regression, else by component at the peak; empty if not measured."""
    regression = report.regression
    if regression and regression.kind is RegressionKind.THROUGHPUT and report.time:
        old, new = report.time.parent.by_activity(), report.time.culprit.by_activity()
        return [
            GrowthRow(
                name=ACTIVITY_NAMES[a],
                before=f"{old[a]:.3f} s",
                after=f"{new[a]:.3f} s",
                growth=f"{new[a] - old[a]:+.3f} s" if new[a] != old[a] else "–",
                named=a is regression.activity,
            )
            for a in Activity
            if old[a] or new[a]
        ]
    memory = report.memory
    if memory is None or memory.parent is None or memory.culprit is None:
        return []
    before, after = memory.parent.breakdown.by_component(), memory.culprit.breakdown.by_component()
    return [
        GrowthRow(
            name=COMPONENT_NAMES[c],
            before=show_bytes(before[c]),
            after=show_bytes(after[c]),
            growth=show_bytes(after[c] - before[c], signed=True) if after[c] != before[c] else "–",
            named=regression is not None and c is regression.component,
        )
        for c in Component
        if before[c] or after[c]
    ]


def seconds_warning(report: CulpritReport) -> str:
    """What to know of seconds that no criterion asked about; "" where they were judged."""
    return "" if is_of_speed(report) else "Single seconds are noisy, and were not judged."


def total_row(report: CulpritReport) -> tuple[str, str, str] | None:
    """Before, after and growth of the whole, under the rows of `growth_rows`."""
    regression = report.regression
    if regression and regression.kind is RegressionKind.THROUGHPUT and report.time:
        old, new = report.time.parent.total_seconds, report.time.culprit.total_seconds
        growth = f"{new - old:+.3f} s" if new != old else "–"
        return f"{old:.3f} s", f"{new:.3f} s", growth
    memory = report.memory
    if memory is None or memory.parent is None or memory.culprit is None:
        return None
    before, after = memory.parent.allocated_bytes, memory.culprit.allocated_bytes
    growth = show_bytes(after - before, signed=True) if after != before else "–"
    return show_bytes(before), show_bytes(after), growth


def evidence_sentences(report: CulpritReport) -> list[str]:
    """What the attribution rests on, and how far the memory model agrees."""
    regression = report.regression
    if regression is None:
        return [PARTIAL] if report.memory and report.memory.partial else []
    sentences = list(regression.evidence)
    if regression.share is not None and regression.component is not None:
        sentences.append(
            f"{round(100 * regression.share)} % of all growth is in {COMPONENT_NAMES[regression.component]}; "
            f"the signature is that of {KIND_WORDS[regression.kind]}."
        )
    if regression.explained_share is not None:
        sentences.append(
            f"The memory model's delta of the two configurations explains "
            f"{round(100 * regression.explained_share)} % of the measured one, component by component."
        )
    sentences.append(f"The evidence for the place is {regression.confidence}.")
    return sentences


#: More rows would hide the one that matters; the JSON has them all.
_MOST_CHANGES = 40


def change_rows(report: CulpritReport) -> list[tuple[str, str, str]]:
    """Key, before and after of what differs in the resolved configuration."""
    return [
        (
            change.key,
            visible(show_value(change.before, change.before_type), limit=200),
            visible(show_value(change.after, change.after_type), limit=200),
        )
        for change in (report.config_delta or ())[:_MOST_CHANGES]
    ]


def pin_rows(report: CulpritReport) -> list[tuple[str, str, str]]:
    rows = []
    for change in report.pin_delta[:_MOST_CHANGES]:
        cut = 10 if change.kind is PinKind.REPOSITORY else 80
        rows.append((change.name, (change.before or "(absent)")[:cut], (change.after or "(absent)")[:cut]))
    return rows


def changes_left_out(report: CulpritReport) -> str:
    """A sentence on the rows that are not shown; "" if all are."""
    more = [max(0, len(rows or ()) - _MOST_CHANGES) for rows in (report.config_delta, report.pin_delta)]
    are = "is" if sum(more) == 1 else "are"
    return f"{counted(sum(more), 'more difference')} {are} in the JSON." if sum(more) else ""


def is_of_speed(report: CulpritReport) -> bool:
    return report.subject is not None and report.subject.criterion.kind is CriterionKind.THROUGHPUT


def suspicion_lines(report: CulpritReport, most: int = 5) -> list[str]:
    """The likeliest answers with their shares, likeliest first, as far as they matter."""
    titles = {commit.hash: step_words(report, commit) for commit in report.commits}
    shares = [(titles.get(s.hash, s.hash[:10]), s.probability) for s in report.posterior.commits]
    shares += [(OTHER_ANSWERS.get(name, name), share) for name, share in report.posterior.others.items()]
    shares.sort(key=lambda pair: -pair[1])
    return [f"{show_confidence(share)}  {name}" for name, share in shares[:most] if share >= 0.001]
