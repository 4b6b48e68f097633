"""Whether a bisection of the demo's repository gave the right answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bisection.finding import FindingKind
from firstbad.demo.repository import Nightly


def check(nightly: Nightly, report: Mapping[str, Any]) -> list[str]:
    """What is wrong with a report (its JSON), one sentence each; empty if it is right.

    The plan says what was planted, the written repository under which hash.
    """
    finding = report.get("finding", {})
    kind, commits = finding.get("kind"), finding.get("commits", [])
    planted = nightly.culprit
    if planted is None:
        if kind == FindingKind.NONE:
            return []
        return [f"nothing regressed, but the finding is {kind!r} with {_short(commits)}"]
    problems = []
    if kind != FindingKind.FOUND:
        problems.append(f"the finding is {kind!r}, not found: {finding.get('why', '')}")
    elif commits != [planted]:
        problems.append(
            f"the culprit is {_short([planted])} ({nightly.plan.mechanism}), not {_short(commits)}"
        )
    component = (report.get("regression") or {}).get("component")
    if component != nightly.plan.component:
        problems.append(f"the component is {nightly.plan.component}, not {component}")
    return problems


def _short(commits: list[str]) -> str:
    return ", ".join(commit[:10] for commit in commits) or "no commit"
