"""The parts of a culprit report: frozen values, JSON by field name.

What each field means to a reader of the JSON is told in docs/reference/report.md. How they are put
together is `report`'s matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bisection.commits import State
from bisection.criteria import Criterion, Verdict
from bisection.finding import LevelKind
from bisection.ledger import Purpose
from bisection.measurement import Outcome, Peak, Step
from memory_models.breakdown import TimeBreakdown


@dataclass(frozen=True, kw_only=True)
class Run:
    """A stretch of a sentence. ``foreign`` text was written by a stranger: show it as code."""

    text: str
    foreign: bool = False


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was bisected, and for what."""

    bisection: str = ""  #: its identifier
    repository: str = ""
    profile: str = ""
    criterion: Criterion
    good: str  #: 40 hex digits
    bad: str
    commits: int  #: length of the range, both ends included
    started_at: str = ""  #: UTC, ISO 8601
    finished_at: str = ""
    line: LevelKind = LevelKind.COMMITS  #: what the range's steps are; of some kinds they are no commits


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the request said, in its own words; "" where it was not recorded."""

    bisection: str = ""
    repository: str = ""
    profile: str = ""
    good: str = ""  #: a ref or a hash, as it was given
    bad: str = ""


@dataclass(frozen=True, kw_only=True)
class Retraction:
    """Somebody took the result back."""

    by: str
    at: str  #: UTC, ISO 8601
    reason: str


class PinKind(StrEnum):
    """What a pin holds in place."""

    REPOSITORY = "repository"  #: a gitlink: before and after are hashes
    PACKAGE = "package"  #: a line of the lock: before and after are versions


@dataclass(frozen=True, kw_only=True)
class PinChange:
    """A pin that the culprit moved; None on the side where it does not exist."""

    kind: PinKind
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Lines are None for a binary file, and where they were not counted."""

    path: str
    added: int | None = None
    removed: int | None = None


@dataclass(frozen=True, kw_only=True)
class DiffSummary:
    """What the culprit changed against its first parent."""

    files: tuple[FileChange, ...]
    left_out: int = 0  #: files that are not listed


@dataclass(frozen=True, kw_only=True)
class RemedyEstimate:
    """What re-estimating the changed configuration says; not measured."""

    peak_bytes: int
    slowdown: float  #: share of the step time, 0.05 is 5 % slower
    fits: bool  #: under the capacity


@dataclass(frozen=True, kw_only=True)
class RemedyRow:
    """A proposed change of the configuration. ``proven`` is None where no trial decided it."""

    title: str
    change: Mapping[str, Any]
    estimate: RemedyEstimate
    saving_bytes: int
    cost: str = ""
    legal: bool = True
    why_not: str = ""  #: the rule that forbids it, if not legal
    source: str = ""
    proven: bool | None = None
    proof: str = ""  #: what the proving trial measured, or why it could not
    measured_peak_bytes: int | None = None  #: of that trial; out of memory, the least that it needs
    measured_rate: float | None = None  #: useful tokens a second of the proving trial
    estimate_off_bytes: int | None = None  #: estimated minus measured peak, of a trial that fitted


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One trial with its evidence; the verdict is derived from the ledger at the time of the report."""

    sequence: int
    state: State
    position: int | None  #: of its commit in the range, from 0; None outside
    purpose: Purpose
    attempt: int
    why: str  #: it was chosen
    outcome: Outcome
    verdict: Verdict
    reason: str
    signature: str = ""
    peak_bytes: int | None = None
    capacity_bytes: int | None = None  #: the enforced limit; None: measured without one
    useful_tokens_per_second: float | None = None
    control_tokens_per_second: float | None = None  #: of the good end beside it on the same worker
    seconds: float = 0.0
    worker: str = ""
    device: str = ""
    hardware: str = ""
    real_data: bool | None = None
    images: int = 0
    notes: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    changed: str = ""  #: what it changed in the belief, in words
    taken_from: str = ""  #: another bisection and the number of its trial, where it was measured

    @property
    def is_plain(self) -> bool:
        """Whether the state is a commit as it is, without overridden pins or packages."""
        return not (self.state.pins or self.state.packages)


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """The posterior that this commit is the first bad one."""

    hash: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Over the commits of the range, and over the answers that blame none of them."""

    commits: tuple[Suspicion, ...] = ()  #: in the order of the range
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BeliefRow:
    """The belief over a range at one moment, in thousandths: small enough to keep one for every trial."""

    sequence: int | None  #: of the trial that led here; None: before the first
    position: int | None  #: of the tried step in the level's range, from 0
    mass: tuple[int, ...]  #: on the steps after the first, neighbours together where there are over 120
    no_culprit: int
    good_end_is_bad: int
    suspects: int  #: the fewest steps that hold 95 % of the belief in steps


@dataclass(frozen=True, kw_only=True)
class BeliefHistory:
    """The belief over one level's range before the first trial and after each trial of it.

    Column ``k`` of the C in ``mass`` holds the steps i = 1, 2, .. with (i - 1) * C // (steps - 1) == k.
    """

    level: int  #: 0: the range that was asked about
    title: str
    first: str  #: what its good end is called
    last: str
    steps: int  #: length of its range, both ends included
    named: tuple[int, ...]  #: positions of the steps that were named as the answer of this level
    start: BeliefRow
    rows: tuple[BeliefRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemoryPicture:
    """The two peaks that were compared, against the capacity, and the steps around them."""

    parent: Peak | None
    culprit: Peak | None
    capacity_bytes: int | None = None
    parent_steps: tuple[Step, ...] = ()
    culprit_steps: tuple[Step, ...] = ()
    truncated: bool = False  #: a peak was cut off by a refused allocation
    partial: bool = False  #: a peak is of a trial that crashed, or was not what was asked


@dataclass(frozen=True, kw_only=True)
class TimePicture:
    """Seconds of a steady step by activity and phase, and useful tokens a second."""

    parent: TimeBreakdown
    culprit: TimeBreakdown
    parent_rate: float | None = None
    culprit_rate: float | None = None
    lowest_good_rate: float | None = None  #: the criterion's threshold


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """How the figures were made, where no GPU made them."""

    devices: tuple[str, ...]
    patches: Mapping[str, int] = field(default_factory=dict)  #: stand-in to uses in one trial, the most
    notes: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()  #: what a dry run does not see, in the probe's own words


@dataclass(frozen=True, kw_only=True)
class Link:
    """A page of docs/errors that explains an outcome or a problem of this report."""

    name: str
    page: str  #: path from the top of the firstbad repository
