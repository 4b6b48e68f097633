"""What one finished trial changed, in plain words.

Words only, from the standing of a search before and after it: `belief_history` walks the ledger,
`narration` tells why a trial was chosen.
"""

from __future__ import annotations

from bisection import narration
from bisection.answers import AGREEING_TRIALS, Standing
from bisection.credible import credible_groups
from bisection.evidence import LOST_IN_A_ROW
from bisection.ledger import Purpose
from bisection.quantities import counted

#: Of a trial of a state that later commits took back.
OFF_THE_LINE = "It is no evidence: what made this state was undone again before the bad end."
#: Of trials that came after the answer, to ask something else.
ASIDE = {
    Purpose.REVERT: "It came after the answer and changed no belief: it says whether the revert mends.",
    Purpose.PROOF: "It came after the answer and changed no belief: it says whether the remedy holds.",
}
#: The belief in an answer that blames no commit is spoken of when it moved by more than this.
_TELLING_SHIFT = 0.1
_HALVED = (0.4, 0.6)


def trial_effect(before: Standing, after: Standing, group: int) -> str:
    """What a trial of this state changed: one to three sentences."""
    old, new = before.evidence.of(group), after.evidence.of(group)
    if new.lost_in_a_row > old.lost_in_a_row:
        return _lost(new.lost_in_a_row)
    if new.skips > old.skips:
        return _not_judged(before, after)
    failed = new.failures > old.failures
    sentences = [_first_failure(before, after), _repeat(after, group, failed=failed), _shift(before, after)]
    return " ".join(sentence for sentence in sentences if sentence)


def _lost(in_a_row: int) -> str:
    if in_a_row % LOST_IN_A_ROW == 0:
        return f"It told nothing; lost {in_a_row} times in a row, the state counts as untestable."
    return "It told nothing: its worker was lost."


def _not_judged(before: Standing, after: Standing) -> str:
    shut = len(before.open) - len(after.open)
    if shut > 1:
        return f"It says nothing of good or bad; {shut} states around it are taken for untestable now."
    return "It says nothing of good or bad; another state must."


def _first_failure(before: Standing, after: Standing) -> str:
    """What is looked for became known, or is known to be another failure than was thought."""
    if not any(seen.bad for seen in after.evidence.observations):
        return ""
    signature = after.evidence.signature
    named = f" with {signature}" if signature else ""
    if not any(seen.bad for seen in before.evidence.observations):
        if after.evidence.anchored:
            return f"The first failure{named}: this is what is looked for."
        return f"The first failure{named}; whether it is the one looked for, the bad end must tell."
    if signature != before.evidence.signature:
        return f"The failure looked for is the one{named}: what failed otherwise no longer counts."
    return ""


def _repeat(after: Standing, group: int, *, failed: bool) -> str:
    """What it says beside earlier trials of the same state."""
    state, name = after.evidence.of(group), after.line.name(group)
    agreeing, against = (state.failures, state.passes) if failed else (state.passes, state.failures)
    verb, other = ("failed", "passed") if failed else ("passed", "failed")
    if against:
        return f"{name} {verb} here, and {other} in {counted(against, 'trial')}: one or the other is a flake."
    if agreeing >= AGREEING_TRIALS:
        return f"Confirmed: {name} {verb} in {counted(agreeing, 'trial')} and never otherwise."
    return ""


def _shift(before: Standing, after: Standing) -> str:
    """Where the belief went."""
    old, new = before.posterior.belief, after.posterior.belief
    for index, words in ((-1, "nothing in the range is to blame"), (0, "the good end was bad all along")):
        if abs(new[index] - old[index]) > _TELLING_SHIFT:
            return (
                f"Belief that {words}: {narration.percent(float(old[index]))} before, "
                f"{narration.percent(float(new[index]))} now."
            )
    if not any(seen.bad for seen in after.evidence.observations):
        return "Nothing has failed yet."
    had, has = credible_groups(old), credible_groups(new)
    if len(has) < len(had):
        halved = _HALVED[0] <= len(has) / len(had) <= _HALVED[1]
        verb = "halved" if halved else "narrowed"
        return f"It {verb} the suspects from {len(had)} to {len(has)}."
    if len(has) > len(had):
        return f"It widened the suspects from {len(had)} to {len(has)}."
    if len(has) > 1:
        return f"{counted(len(has), 'suspect')} remain." if had == has else "The suspects moved."
    name, share = after.line.name(has[0]), narration.percent(float(new[has[0]]))
    return f"{name} is the one suspect, with {share}" + (
        f" after {narration.percent(float(old[has[0]]))}." if had == has else "."
    )
