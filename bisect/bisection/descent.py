"""From what was found on each level to one answer: the outer culprit, and the way down from it.

The answer to what was asked is the ground level's; the levels below say what its culprit carries.
When a level below ends without a name, the culprit above it stands all the same.
"""

from __future__ import annotations

from dataclasses import replace

from bisection.finding import Finding, FindingKind, LevelFinding
from bisection.levels import Level, LevelKind
from bisection.openings import is_joint
from bisection.specification import BisectionSpec

#: Problems of a search that stopped before its end.
_CUT_SHORT = frozenset({"budget-spent", "cancelled"})


def whole_answer(spec: BisectionSpec, last: Finding, note: LevelFinding | None = None) -> Finding:
    """The answer of all levels, where ``last`` is the last one's; ``note`` is of what could not be opened."""
    levels = spec.levels
    findings = [*(level.opened_by for level in levels[1:]), last]
    ground = spec.ground
    below = []
    for number in range(ground + 1, len(levels)):
        finding = findings[number]
        assert finding is not None  # a level below another was opened by what that one found
        below.append(level_finding(levels[: number + 1], finding))
    answer = findings[ground]
    assert answer is not None
    return replace(answer, descent=(*below, *([note] if note else [])))


def only_step(level: Level, above: Finding) -> Finding:
    """The finding of a level with one step: what was found above is that step, and needs no trial."""
    step = level.range.bad
    return Finding(
        kind=FindingKind.FOUND,
        commits=(step.hash,),
        parent=level.range.good.hash,
        confidence=above.confidence,
        why=f"{level.name(level.accused(step.hash))} is all that {level.title} holds.",
    )


def level_finding(levels: tuple[Level, ...], finding: Finding) -> LevelFinding:
    """What the last of the levels found, with the words for it."""
    level = levels[-1]
    lost = finding.kind is FindingKind.FOUND and (
        level.takes_away(finding.commits[0]) or level.leaves_behind(finding.commits[0])
    )
    accused = [level.accused(step) for step in finding.commits]
    joint = is_joint(levels, finding)
    names = tuple(
        commit.subject if level.is_made else f"{commit.short} {commit.subject}".rstrip() for commit in accused
    )
    return LevelFinding(
        level=level.kind,
        path=level.path,
        repository=level.repository,
        title=level.title,
        kind=finding.kind,
        commits=tuple(commit.hash for commit in accused),
        names=names,
        parent=finding.parent,
        lost=lost,
        joint=joint,
        confidence=finding.confidence,
        why=_why(level, finding, lost=lost, joint=joint),
        problem="joint-change" if joint else finding.problem,
    )


def _why(level: Level, finding: Finding, *, lost: bool, joint: bool) -> str:
    if joint:
        return (
            "These parts of the change could not be told apart: in neither order could a state with only "
            f"some of them be tested. {finding.why}"
        )
    if finding.problem == "good-end-is-bad":
        return (
            f"It is not to blame: with {level.name(level.range.good)} and all else as at the culprit, the "
            "regression is there too. What the culprit changes besides is what seemed to be no code, such as "
            "documentation or tests, or the trials were flaky."
        )
    if lost and level.kind is not LevelKind.MERGE:
        step = finding.commits[0]
        return (
            f"A fix was lost: {level.accused(step).short} is on the old side only, and without it, at "
            f"{level.range.commits[level.range.position(step)].short}, the regression is there. {finding.why}"
        )
    if level.kind is LevelKind.MERGE and finding.kind is FindingKind.FOUND:
        if finding.commits[0] == level.range.bad.hash:
            return (
                "Both parents of the merge pass, so the merge itself is to blame: what its two sides changed "
                f"does not go together. {finding.why}"
            )
        if lost:
            first, second = level.range.commits[:2]
            return (
                f"The merged branch left at {second.short}, which fails already, where {first.short} "
                f"passes: what mended it between them is lost in the merge. {finding.why}"
            )
    if level.kind is LevelKind.FACTORS and finding.kind is FindingKind.FOUND:
        earlier = level.range.commits[1 : level.range.position(finding.commits[0])]
        if earlier:
            # Which of two that are bad only together comes last is a matter of the order.
            names = ", ".join(step.subject for step in earlier)
            return f"{finding.why} Switched before it, without harm so far: {names}."
    if finding.problem in _CUT_SHORT:
        return f"The descent came no further than this. {finding.why}"
    return finding.why
