"""The report as a value: built from a ledger, written as JSON, read again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bisection.commit_record import commit_verdicts, compared_commits
from bisection.commits import Commit, CommitRange
from bisection.criteria import Criterion, CriterionKind, Verdict
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry
from bisection.regression import Origin, RegressionKind
from bisection.report import CulpritReport, Evidence, build_report, rejected_report
from bisection.report_parts import Asked, PinChange, PinKind, Posterior
from memory_models.breakdown import MIB, Activity, Category, Component
from tests.unit.report import samples
from tests.unit.report.test_rendering import BUILDERS, REPORTS, built

SCHEMA = Path(__file__).parents[3] / "docs" / "reference" / "report.md"


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_survives_json(name: str) -> None:
    report = REPORTS[name]
    assert CulpritReport.from_json(json.loads(json.dumps(report.to_json(), allow_nan=False))) == report


def names(row: Any) -> Iterator[str]:
    """Every key that the schema fixes; below ``change``, ``patches`` and the like, keys are data."""
    if isinstance(row, list):
        for item in row:
            yield from names(item)
    elif isinstance(row, dict):
        for key, value in row.items():
            yield key
            if key not in DATA_KEYS:
                yield from names(value)


DATA_KEYS = {
    *("change", "patches", "pins", "packages", "others"),
    *("by_component", "by_activity", "environment", "before", "after"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_every_key_of_the_json_is_documented(name: str) -> None:
    documented = set(re.findall(r"`([a-z_]+)`", SCHEMA.read_text(encoding="utf-8")))
    assert set(names(REPORTS[name].to_json())) <= documented


def test_another_version_and_what_is_no_report_are_refused() -> None:
    row = REPORTS["experts"].to_json()
    with pytest.raises(ValueError, match="report version 2 is not known here"):
        CulpritReport.from_json({**row, "version": 2})
    with pytest.raises(ValueError, match="not a CulpritReport"):
        CulpritReport.from_json({"version": 1})
    with pytest.raises(ValueError, match="notes: expected a list, got str"):
        CulpritReport.from_json({**row, "notes": "all of them"})


def test_keys_that_a_newer_writer_added_are_passed_over() -> None:
    row = REPORTS["experts"].to_json()
    assert CulpritReport.from_json({**row, "added_later": 1}) == REPORTS["experts"]


def test_a_found_culprit_is_told_with_its_component_its_change_and_its_way_back() -> None:
    report = REPORTS["experts"]
    assert report.culprit == samples.experts().spec.range.commits[17]
    assert report.parent == samples.experts().spec.range.commits[16]
    regression = report.regression
    assert regression is not None
    assert (regression.component, regression.category) == (Component.EXPERTS, Category.ACTIVATIONS)
    assert regression.category_delta_bytes == round(41.2 * MIB)
    # The second failing trial, measured without the limit, is compared, not the truncated ones.
    assert not regression.truncated
    assert regression.explained_share == pytest.approx(1 - (41.2 - 38.9 + 0.4) / 41.6, abs=0.001)
    assert [c.key for c in report.config_delta or ()] == ["model.recompute_modules"]
    assert [recipe.name for recipe in report.way_back] == ["last_good", "revert", "override"]
    assert {link.name for link in report.links} == {"out-of-memory", "crashed", "invalid", "lost"}


def test_where_only_truncated_peaks_were_measured_the_claim_is_lowered() -> None:
    regression = REPORTS["truncated"].regression
    assert regression is not None
    assert regression.component is Component.EXPERTS
    assert regression.truncated
    assert "at least" in REPORTS["truncated"].summary


def test_a_moved_package_is_named_and_its_larger_images_are_the_vision_towers() -> None:
    report = REPORTS["pin"]
    assert report.pin_delta == (
        PinChange(kind=PinKind.PACKAGE, name="nightly-images", before="1.0.0", after="1.1.0"),
    )
    regression = report.regression
    assert regression is not None
    assert (regression.component, regression.kind, regression.origin) == (
        Component.VISION,
        RegressionKind.IMAGE_LOAD,
        Origin.PINS,
    )
    assert report.way_back[1].text == f"git checkout {report.finding.parent} -- requirements.lock"


def test_a_lock_that_was_not_read_moves_no_package() -> None:
    sample = samples.pin()
    report = build_report(
        sample.spec, sample.ledger, sample.finding, replace(sample.evidence, parent_lock="")
    )
    assert report.pin_delta == ()


def test_the_component_is_the_same_with_the_configurations_hidden() -> None:
    for make in (samples.experts, samples.vision, samples.pin):
        sample = make()
        hidden = replace(
            sample.evidence, parent_config=None, culprit_config=None, parent_lock="", comparison=None
        )
        shown, blind = built(sample).regression, built(replace(sample, evidence=hidden)).regression
        assert shown is not None
        assert blind is not None
        assert (shown.component, shown.category, shown.kind) == (blind.component, blind.category, blind.kind)


def test_a_slower_activity_is_told_in_seconds() -> None:
    report = REPORTS["throughput"]
    assert report.regression is not None
    assert report.regression.activity is Activity.DISPATCH
    assert report.time is not None
    assert report.time.lowest_good_rate == 650.0
    assert "538.3 useful tokens a second against a threshold of 650.0" in report.summary


def test_a_set_is_compared_across_and_names_its_suspects() -> None:
    report = REPORTS["set"]
    line = report.commits
    assert report.compared == (line[15].hash, line[18].hash)
    assert report.suspects == line[16:19]
    assert report.culprit is None
    assert report.way_back == ()
    assert report.regression is not None
    assert report.regression.component is Component.EXPERTS


def test_without_a_culprit_both_ends_are_shown_and_nothing_is_attributed() -> None:
    report = REPORTS["none"]
    assert report.regression is None
    assert report.compared == (report.commits[0].hash, report.commits[-1].hash)
    assert report.memory is not None
    assert report.summary.startswith("No commit of the range is to blame (confidence 99.5 %)")


def test_a_search_that_only_stopped_clears_nobody() -> None:
    sample = samples.nothing()
    stopped = Finding(kind=FindingKind.NONE, why="it was cancelled", problem="cancelled")
    report = built(replace(sample, finding=stopped))
    assert report.summary == "No commit was named: it was cancelled."


def test_a_rejected_request_names_the_repair_and_has_no_trials() -> None:
    report = rejected_report(samples.REJECTED, Evidence())
    assert "fetch it, or give a full hash" in report.summary
    assert report.links[0].page == "docs/errors/unknown-ref.md"
    assert (report.subject, report.trials, report.git_bisect_log) == (None, (), "")


def test_a_request_rejected_by_its_first_trial_still_shows_that_trial() -> None:
    sample = samples.nothing()
    finding = Finding(
        kind=FindingKind.REJECTED, why="there is no key 'modle.topk'", problem="unknown-configuration-key"
    )
    report = built(replace(sample, finding=finding))
    assert len(report.trials) == 3
    assert report.compared == ()
    assert report.reproduce is None


def test_a_finding_outside_the_range_is_refused() -> None:
    sample = samples.experts()
    stray = Finding(**{**sample.finding.__dict__, "commits": ("f" * 40,)})
    with pytest.raises(ValueError, match="which is not in the range"):
        built(replace(sample, finding=stray))


def with_twins(line: CommitRange, *pairs: tuple[int, int]) -> CommitRange:
    """The range with the second commit of each pair in the state of the first."""
    rows = list(line.commits)
    for first, second in pairs:
        rows[second] = Commit(**{**rows[second].__dict__, "tree_key": rows[first].tree_key})
    return CommitRange(commits=tuple(rows))


def renumbered(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """What is left of a ledger, as a ledger of its own."""
    return tuple(replace(entry, sequence=n) for n, entry in enumerate(entries))


def test_a_parent_that_was_measured_as_another_commit_of_its_state_counts() -> None:
    sample = samples.experts()
    # The parent, 16, is the state of 15; only 15 was tried.
    line = with_twins(sample.spec.range, (15, 16))
    tried = renumbered(e for e in sample.ledger if e.trial.state.commit != line.commits[16].hash)
    spec = replace(sample.spec, range=line)
    assert commit_verdicts(spec, tried)[line.commits[16].hash] is Verdict.GOOD
    report = build_report(spec, tried, sample.finding, sample.evidence)
    assert report.regression is not None
    assert f"git bisect good {line.commits[16].hash}" in report.git_bisect_log


def test_a_state_with_an_override_never_speaks_for_its_commit() -> None:
    sample = samples.experts()
    revert = sample.ledger[-1]
    assert revert.trial.state.commit == sample.spec.range.bad.hash
    assert [row.verdict for row in built(sample).trials][-1] is Verdict.GOOD
    assert commit_verdicts(sample.spec, sample.ledger)[sample.spec.range.bad.hash] is Verdict.BAD
    assert sample.spec.range.bad.hash not in commit_verdicts(sample.spec, [revert])


def test_a_commit_with_as_many_good_as_bad_trials_is_skipped() -> None:
    sample = samples.experts()
    line = sample.spec.range
    plan: list[samples.Planned] = [
        (3, samples.SEARCH, "", samples.measurement()),
        (3, samples.SEARCH, "", samples.measurement(delta=samples.EXPERTS_DELTA)),
        (4, samples.SEARCH, "", samples.measurement()),
    ]
    verdicts = commit_verdicts(sample.spec, samples.ledger_of(line, plan))
    assert verdicts == {line.commits[3].hash: Verdict.SKIP, line.commits[4].hash: Verdict.GOOD}


def test_a_set_without_trials_around_it_is_compared_from_end_to_end() -> None:
    sample = samples.experts()
    line = sample.spec.range
    finding = Finding(kind=FindingKind.SET, commits=tuple(c.hash for c in line.suspects), confidence=0.4)
    assert compared_commits(sample.spec, (), finding) == (line.good.hash, line.bad.hash)
    report = build_report(sample.spec, (), finding, Evidence())
    assert report.regression is None


def test_a_changed_threshold_changes_the_verdicts_without_a_new_trial() -> None:
    sample = samples.experts()
    lenient = Criterion(kind=CriterionKind.PEAK_MEMORY, threshold=500.0 * MIB)
    before = {row.verdict for row in built(sample).trials}
    rows = renumbered(e for e in sample.ledger if e.measurement.oom is None)
    spec = replace(sample.spec, criterion=lenient)
    after = {row.verdict for row in build_report(spec, rows, sample.finding, sample.evidence).trials}
    assert Verdict.BAD in before
    assert Verdict.BAD not in after


def test_one_worker_that_confirmed_itself_is_told() -> None:
    sample = samples.experts()
    alone = tuple(replace(e, measurement=e.measurement.evolve(worker="only")) for e in sample.ledger)
    assert any(
        note.startswith("One worker measured everything")
        for note in built(replace(sample, ledger=alone)).notes
    )
    assert not any(note.startswith("One worker") for note in built(sample).notes)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_trial_is_told_with_what_judged_it(name: str) -> None:
    sample = BUILDERS[name]()
    report = built(sample)
    assert len(report.trials) == len(sample.ledger)
    assert all(row.reason for row in report.trials)


def test_a_set_without_one_failing_trial_accuses_nobody() -> None:
    for name, summary in (
        ("untestable", "Nothing is known: neither end can be judged, and the profile probably needs repair."),
        ("cancelled", "Nothing is known yet: no trial could be judged bad."),
    ):
        report = REPORTS[name]
        assert report.summary == summary
        assert report.nothing_known
        assert (report.suspects, report.regression, report.posterior) == ((), None, Posterior())
        assert report.compared == (report.commits[0].hash, report.commits[-1].hash)
        assert report.memory is not None
        assert (report.memory.truncated, report.memory.partial) == (False, True)
    assert not REPORTS["set"].nothing_known


def test_one_failing_trial_is_enough_for_a_set_of_suspects() -> None:
    sample = samples.cancelled()
    failed = replace(sample.ledger[1], measurement=samples.refused(sample.spec.range.bad.hash))
    report = built(replace(sample, ledger=(sample.ledger[0], failed)))
    assert report.summary.startswith(
        "The search was cancelled. As far as it went, the first bad commit is one of 25"
    )
    assert report.memory is not None
    assert (report.memory.truncated, report.memory.partial) == (True, False)


def test_every_report_keeps_the_words_of_the_request() -> None:
    sample = samples.experts()
    evidence = replace(sample.evidence, good="nightly-green", bad="main")
    asked = built(replace(sample, evidence=evidence)).asked
    assert (asked.good, asked.bad, asked.profile) == ("nightly-green", "main", "qwen3-vl-tiny-cpu")
    assert REPORTS["rejected"].asked == Asked(
        bisection="b-20261130-2",
        repository="nightly",
        profile="qwen3-vl-tiny-cpu",
        good="nightly-green",
        bad="main",
    )
    row = REPORTS["experts"].to_json()
    del row["asked"]  # written before reports kept it
    assert CulpritReport.from_json(row).asked == Asked()
