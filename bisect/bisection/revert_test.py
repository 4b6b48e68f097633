"""The revert test: does the bad end pass once the culprit is taken back?

Apart from the search: it adds to an answer and never takes from it. A revert that does not mend says that
there is another cause as well, not that the named commit is innocent: its own trials and its parent's stand.
How the state is made is the workers' matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bisection.circumstances import Circumstances
from bisection.criteria import Criterion, Judgement, Verdict, judge
from bisection.ledger import LedgerEntry, Purpose

#: Lost trials after which the test is given up: it is worth less than what the answer rests on.
MOST_LOST = 2


class RevertResult(StrEnum):
    """What became of the bad end without the culprit."""

    MENDS = "mends"  #: it passes
    DOES_NOT_MEND = "does_not_mend"  #: it fails in the way that was looked for
    UNTESTABLE = "untestable"  #: it could not be judged
    CONFLICTS = "conflicts"  #: git cannot take the culprit back there
    NOT_RUN = "not_run"  #: nothing was tried; ``why`` says what stood in the way


@dataclass(frozen=True, kw_only=True)
class RevertTest:
    """The result, and it in one or two sentences."""

    result: RevertResult
    why: str
    commit: str = ""  #: hash of the state that was made for it; "" where none was
    trials: int = 0  #: that were run for it

    def to_json(self) -> dict[str, Any]:
        return {"result": self.result.value, "why": self.why, "commit": self.commit, "trials": self.trials}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RevertTest:
        return cls(
            result=RevertResult(row["result"]),
            why=row["why"],
            commit=row["commit"],
            trials=row["trials"],
        )


def trials_wanted(ledger: Sequence[LedgerEntry], criterion: Criterion, known: Circumstances) -> int:
    """One; two where trials of one state were judged differently, so that a flake does not decide."""
    seen: dict[object, set[Verdict]] = {}
    for entry in ledger:
        verdict = judge(criterion, entry.measurement, known).verdict
        if verdict in (Verdict.GOOD, Verdict.BAD):
            seen.setdefault(entry.trial.state, set()).add(verdict)
    return 2 if any(len(verdicts) > 1 for verdicts in seen.values()) else 1


def judged(
    criterion: Criterion,
    signature: str,
    ledger: Sequence[LedgerEntry],
    culprit: str,
    known: Circumstances,
) -> RevertTest | None:
    """What the trials of the revert say; None while they say too little.

    ``signature`` is of the failure looked for, ``culprit`` what to call the commit in a sentence, ``known``
    what the search's verdicts depended on besides their measurements.
    """
    tried = [entry for entry in ledger if entry.trial.purpose is Purpose.REVERT]
    if not tried:
        return None
    commit = tried[-1].trial.state.commit
    judgements = [_judgement(criterion, signature, entry, known) for entry in tried]
    bad = [one for one in judgements if one.verdict is Verdict.BAD]
    good = [one for one in judgements if one.verdict is Verdict.GOOD]
    skipped = [one for one in judgements if one.verdict is Verdict.SKIP]
    wanted = trials_wanted(ledger, criterion, known)

    def told(result: RevertResult, why: str) -> RevertTest:
        return RevertTest(result=result, why=why, commit=commit, trials=len(tried))

    if skipped:
        return told(
            RevertResult.UNTESTABLE,
            f"Whether reverting it mends the bad end is not known: without {culprit}, that cannot be judged: "
            f"{skipped[-1].why}.",
        )
    if len(bad) + len(good) >= wanted or (bad and good):
        if bad and good:
            return told(
                RevertResult.UNTESTABLE,
                f"Whether reverting it mends the bad end is not known: without {culprit}, that passed in "
                f"{len(good)} and failed in {len(bad)} of {len(tried)} trials.",
            )
        if good:
            return told(
                RevertResult.MENDS,
                f"Reverting it on the bad end mends it (measured: {good[-1].why}).",
            )
        return told(
            RevertResult.DOES_NOT_MEND,
            f"Reverting it alone does not mend the bad end: without {culprit}, that still fails (measured: "
            f"{bad[-1].why}). A later commit has the same fault, or carries on what this one began; that it "
            "first appears with this one rests on its own trials and its parent's.",
        )
    if len(judgements) - len(bad) - len(good) >= MOST_LOST:
        return told(RevertResult.NOT_RUN, "The revert was not measured: its trials were lost.")
    return None


def _judgement(criterion: Criterion, signature: str, entry: LedgerEntry, known: Circumstances) -> Judgement:
    """A failure with another signature than the one looked for says nothing, here as in the search."""
    judgement = judge(criterion, entry.measurement, known)
    if judgement.verdict is Verdict.BAD and signature and judgement.signature != signature:
        return Judgement(
            verdict=Verdict.SKIP,
            why=f"it failed with {judgement.signature or 'no signature'}, not with {signature}",
            signature=judgement.signature,
        )
    return judgement
