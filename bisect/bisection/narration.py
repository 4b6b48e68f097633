"""The sentences that tell people why a trial was chosen and what an answer rests on.

Words only: every decision was made elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from bisection.credible import credible_groups
from bisection.evidence import Evidence, StateEvidence
from bisection.ledger import Purpose
from bisection.posterior import Posterior
from bisection.quantities import counted
from bisection.states import Line


def percent(share: float) -> str:
    """A share for people; never rounded to a certainty that nobody has."""
    if 0.0005 <= share < 0.9995:
        return f"{100 * share:.1f} %"
    return "less than 0.1 %" if share < 0.5 else "more than 99.9 %"


def trial_reason(
    line: Line, evidence: Evidence, posterior: Posterior, group: int, purpose: Purpose, bits: float
) -> str:
    """Why this state is tried next."""
    short = line.name(group)
    seen = _tally(evidence.of(group))
    if group == line.last and purpose is Purpose.END:
        return (
            f"The bad end {short}: does it fail at all, and with which failure? {seen} "
            f"Belief that nothing in the range is to blame: {percent(float(posterior.belief[-1]))}."
        )
    if group == 0 and purpose is Purpose.END:
        return (
            f"The good end {short}: is it good here and now? {seen} "
            f"Belief that it was bad all along: {percent(float(posterior.belief[0]))}."
        )
    before = float(posterior.belief[: group + 1].sum())
    if purpose is Purpose.CONFIRM:
        role = "fail" if before >= 0.5 else "pass"
        return (
            f"{short} must {role} again before an answer may rest on it. {seen} "
            f"Belief that it is bad: {percent(before)}."
        )
    suspects = len(credible_groups(posterior.belief))
    task = f"divides the {suspects} suspects" if suspects > 1 else "checks the one suspect left"
    return (
        f"{short} {task}: with {percent(before)} the regression was there by then. {seen} "
        f"A trial here is expected to tell {bits:.2f} bits."
    )


def _tally(state: StateEvidence) -> str:
    """What is known of a state, in one sentence."""
    parts = [
        f"{verb} {counted(count, 'time')}"
        for verb, count in (
            ("failed", state.failures),
            ("passed", state.passes),
            ("could not be judged", state.skips),
        )
        if count
    ]
    return f"It {' and '.join(parts)} so far." if parts else "It was not tried yet."


def _times(count: int, verb: str, workers: set[str]) -> str:
    where = f" on {len(workers)} workers" if len(workers) > 1 else ""
    return f"{verb} in {counted(count, 'trial')}{where}"


def found(line: Line, evidence: Evidence, group: int, workers: int) -> str:
    culprit, parent = evidence.of(group), evidence.of(group - 1)
    before = "the step before it," if line.level.is_made else "its parent"
    sentence = (
        f"{line.name(group)} {_times(culprit.failures, 'failed', culprit.failing_workers)}, "
        f"and {before} {line.level.name(line.parent(group))}{',' if line.level.is_made else ''} "
        f"{_times(parent.passes, 'passed', parent.passing_workers)}."
    )
    if culprit.passes or parent.failures:
        sentence += (
            f" Against it stand {counted(culprit.passes, 'passing trial')} of the commit "
            f"and {counted(parent.failures, 'failing one')} of its parent, taken for flakes."
        )
    if line.parent(group).hash != line.first_commit(group - 1).hash:
        sentence += (
            f" The parent was measured at {line.name(group - 1)}, which is the same state to this profile."
        )
    if workers == 1 and len(culprit.failing_workers | parent.passing_workers) == 1:
        sentence += " One worker ran all trials, each in a fresh process and workspace."
    elif min(len(culprit.failing_workers), len(parent.passing_workers)) < 2:
        sentence += " No second worker took part, so a fault of the one machine is not ruled out."
    return sentence


def good_end_is_bad(line: Line, evidence: Evidence) -> str:
    good, bad = evidence.of(0), evidence.of(line.last)
    failed = _times(good.failures, "failed", good.failing_workers)
    sentence = f"The good end is already bad: {line.name(0)} {failed}"
    if bad.failures:
        also = _times(bad.failures, "it failed", bad.failing_workers)
        sentence += f", as the bad end does ({also}): both ends fail"
    return (
        f"{sentence}. Choose an older good commit; if none is known to be good, the limit, "
        "the machine or the data may have changed instead of the code."
    )


def bad_end_passes(line: Line, evidence: Evidence) -> str:
    end = evidence.of(line.last)
    passed = sum(state.passes for state in evidence.states.values())
    failed = sum(state.failures for state in evidence.states.values())
    return (
        f"The bad end {line.name(line.last)} "
        f"{_times(end.passes, 'passed', end.passing_workers)}; over the whole range "
        f"{counted(passed, 'trial')} passed and {failed} failed. Nothing in the range is to blame: "
        "the failure was a flake, or its cause lies outside the code."
    )


def bad_end_untestable(line: Line, evidence: Evidence) -> str:
    return (
        f"The bad end {line.name(line.last)} does not show the regression that was asked "
        f"about, and cannot be judged: {_reasons(evidence.of(line.last))}. Choose a bad commit that runs, "
        "or the criterion that matches its failure."
    )


def other_work(line: Line, evidence: Evidence) -> str:
    return (
        f"The bad end {line.name(line.last)} does other work than the good end, so their speeds cannot be "
        f"compared: {_reasons(evidence.of(line.last))}. That is a change of the work, not of its speed."
    )


def work_changed(names: Sequence[str], parent: str) -> str:
    """``names`` of the commits of which one changed it, oldest first."""
    if len(names) == 1:
        return f"It came with {names[0]}: up to {parent} a step holds what it does at the good end."
    return f"It came with one of {counted(len(names), 'commit')}, from {names[0]} to {names[-1]}."


def nothing_testable(line: Line, evidence: Evidence) -> str:
    return (
        f"Neither end can be judged. The bad end {line.name(line.last)}: "
        f"{_reasons(evidence.of(line.last))}. The good end {line.name(0)}: "
        f"{_reasons(evidence.of(0))}. The profile's launch or environment probably needs repair."
    )


def untestable_stretch(line: Line, evidence: Evidence, first: int, last: int) -> str:
    lower, upper = evidence.of(first - 1), evidence.of(last)
    inside = [evidence.of(group) for group in range(first, last)]
    tried = sum(1 for state in inside if state.untestable_trials)
    reasons = next((_reasons(state) for state in inside if state.skip_reasons), "their workers were lost")
    steps = "steps" if line.level.is_made else "commits"
    return (
        f"The regression began in one of {last - first + 1} {steps}: {line.name(last)} "
        f"{_times(upper.failures, 'failed', upper.failing_workers)}, {line.name(first - 1)} "
        f"{_times(lower.passes, 'passed', lower.passing_workers)}, and of the {steps} between them "
        f"{tried} of {last - first} were tried and none could be judged: {reasons}."
    )


def good_end_untestable(line: Line, evidence: Evidence, last: int) -> str:
    upper = evidence.of(last)
    return (
        f"The good end {line.name(0)} cannot be judged: {_reasons(evidence.of(0))}. The first "
        f"commit that can be, {line.name(last)}, "
        f"{_times(upper.failures, 'failed', upper.failing_workers)}. Choose a good end that runs."
    )


def same_state(line: Line) -> str:
    return (
        f"The good end {line.name(0)} and the bad end {line.level.name(line.range.bad)} have the same "
        "relevant trees, pins and environment: nothing between them can change the repro."
    )


def leaning_to_none(which: str) -> str:
    if which == "good-end-is-bad":
        return "So far most of the evidence says that the good end was bad all along."
    return "So far most of the evidence says that nothing in the range is to blame."


def best_so_far(line: Line, evidence: Evidence, posterior: Posterior, suspects: Sequence[int]) -> str:
    """Nobody is called likely before something failed: until then a belief is what was thought at first."""
    if not any(seen.bad for seen in evidence.observations):
        return "Nothing has failed so far, so nothing tells one commit from another."
    likeliest = max(suspects, key=lambda group: float(posterior.belief[group]))
    share = percent(float(posterior.belief[likeliest]))
    if len(suspects) == 1:
        return f"So far {line.name(likeliest)} is the one suspect left, with {share}, not confirmed."
    return (
        f"So far {len(suspects)} of {counted(len(line) - 1, 'suspect')} remain; the likeliest is "
        f"{line.name(likeliest)} with {share}, not confirmed."
    )


def _reasons(state: StateEvidence) -> str:
    """The last reason why a state could not be judged, once."""
    return state.skip_reasons[-1] if state.skip_reasons else "its trials gave no result again and again"
