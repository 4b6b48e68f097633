"""What holds for every planted culprit, order of arrival, pattern of skips and crash."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.criteria import CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import LedgerEntry, Trial
from bisection.search import Search
from bisection.skips import FEWEST_PROBES
from memory_models.breakdown import GIB
from tests.unit.search.drawn_lines import DrawnLine, drive, hash_of, worker_for


@st.composite
def drawn_lines(draw: st.DrawFn) -> str:
    """A line of 2 to 40 commits with a culprit that can be tested, as its parent can.

    At most four commits cannot be tested: five in a stretch may be taken for one block.
    """
    size = draw(st.integers(1, 39))
    culprit = draw(st.integers(1, size))
    drawing = ["."] + [draw(st.sampled_from("...=")) for _ in range(size)]
    for hole in draw(st.sets(st.integers(0, size), max_size=FEWEST_PROBES + 1)):
        drawing[hole] = draw(st.sampled_from("so"))
    drawing[0] = drawing[culprit - 1] = drawing[size] = "."
    drawing[culprit] = "X"
    return "".join(drawing)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(drawing=drawn_lines(), parallel=st.integers(1, 5), seed=st.integers(0, 1000))
def test_the_planted_culprit_is_found_for_any_holes_and_order_of_arrival(
    drawing: str, parallel: int, seed: int
) -> None:
    line = DrawnLine(drawing=drawing, seed=seed)
    finding, ledger = drive(
        line,
        line.specification(parallel=parallel, workers=parallel),
        order=lambda running: line.random.randrange(len(running)),
    )
    assert finding.kind is FindingKind.FOUND
    assert line.culprit is not None
    assert finding.commits == (hash_of(line.culprit),)
    assert len({entry.trial.key for entry in ledger}) == len(ledger)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    size=st.integers(2, 60),
    at=st.floats(0, 1),
    holes=st.sets(st.integers(0, 60)),
    parallel=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_whatever_cannot_be_tested_the_culprit_is_in_the_answer(
    size: int, at: float, holes: set[int], parallel: int, seed: int
) -> None:
    culprit = 1 + round(at * (size - 1))
    drawing = ["s" if position in holes else "." for position in range(size + 1)]
    drawing[0] = drawing[size] = "."  # both ends were seen to run
    line = HiddenCulprit(drawing="".join(drawing), at=culprit)
    line.random.seed(seed)
    finding, _ = drive(
        line,
        line.specification(parallel=parallel, workers=parallel),
        order=lambda running: line.random.randrange(len(running)),
    )
    assert hash_of(culprit) in finding.commits
    testable = [position for position, drawn in enumerate(drawing) if drawn == "."]
    before = max(position for position in testable if position < culprit)
    after = min(position for position in testable if position >= culprit)
    if after - before <= FEWEST_PROBES:
        assert finding.commits == tuple(hash_of(position) for position in range(before + 1, after + 1))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    drawing=drawn_lines(),
    parallel=st.integers(1, 4),
    kind=st.sampled_from([CriterionKind.CRASH, CriterionKind.OUT_OF_MEMORY]),
    cut=st.floats(0, 1),
)
def test_a_replayed_ledger_gives_the_same_next_trials(
    drawing: str, parallel: int, kind: CriterionKind, cut: float
) -> None:
    line = DrawnLine(drawing=drawing, kind=kind, noise_bytes=GIB)
    spec = line.specification(parallel=parallel, workers=parallel)
    search = Search.replay(spec, ())
    decisions: list[tuple[list[Trial], tuple[Trial, ...] | Finding]] = []
    running: list[Trial] = []
    entries: list[LedgerEntry] = []
    while True:
        decision = search.next(parallel, running)
        decisions.append((list(running), decision))
        if isinstance(decision, Finding):
            break
        running += decision
        trial = running.pop(0)
        measurement = line.run(trial, worker_for(trial, parallel))
        entries.append(LedgerEntry(sequence=len(entries), trial=trial, measurement=measurement))
        search.record(entries[-1])
    at = round(cut * (len(decisions) - 1))
    pending, decided = decisions[at]
    stored = [LedgerEntry.from_json(entry.to_json()) for entry in entries[:at]]
    assert Search.replay(spec, stored).next(parallel, pending) == decided


@settings(max_examples=25, deadline=None, derandomize=True)
@given(drawing=drawn_lines(), parallel=st.integers(1, 4), crash=st.integers(1, 12))
def test_a_crash_that_forgets_what_was_running_changes_no_answer(
    drawing: str, parallel: int, crash: int
) -> None:
    line = DrawnLine(drawing=drawing)
    spec = line.specification(parallel=parallel, workers=parallel)
    _, ledger = drive(line, spec)
    finding, _ = drive(line, spec, ledger=ledger[: min(crash, len(ledger))])
    assert line.culprit is not None
    assert finding.commits == (hash_of(line.culprit),)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    size=st.integers(3, 40),
    block=st.integers(1, 12),
    place=st.floats(0, 1),
    inside=st.floats(0, 1),
    parallel=st.integers(1, 3),
)
def test_a_culprit_inside_an_untestable_block_is_in_the_answer(
    size: int, block: int, place: float, inside: float, parallel: int
) -> None:
    block = min(block, size - 2)
    start = 1 + round(place * (size - block - 2))
    culprit = start + round(inside * block)
    line = DrawnLine(drawing="." * size)
    drawing = ["."] * size
    drawing[start : start + block] = "s" * block
    hidden = HiddenCulprit(drawing="".join(drawing), at=culprit)
    finding, _ = drive(hidden, line.specification(parallel=parallel, workers=parallel))
    assert hash_of(culprit) in finding.commits
    assert set(finding.commits) <= {hash_of(position) for position in range(start, start + block + 1)}


class HiddenCulprit(DrawnLine):
    """A culprit at a commit that is itself drawn as something else."""

    def __init__(self, *, drawing: str, at: int) -> None:
        super().__init__(drawing=drawing)
        self.at = at

    def bad(self, position: int) -> bool:
        return position >= self.at
