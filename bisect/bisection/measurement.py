"""What one trial measured: facts only, never a judgement.

The shape is versioned and shared by the probe that writes it, the ledger that
keeps it and the report that shows it. Fields are added, never reinterpreted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from bisection.commits import State
from memory_models.breakdown import MemoryBreakdown, TimeBreakdown

VERSION = 1


class Outcome(StrEnum):
    """What happened in a trial. What it means is `criteria.judge`'s matter."""

    COMPLETED = "completed"  #: all steps were taken
    OUT_OF_MEMORY = "out_of_memory"  #: the device allocator refused, really or at the simulated capacity
    CRASHED = "crashed"  #: the training process ended with an error; the signature says which
    TIMED_OUT = "timed_out"  #: the profile's time limit was reached
    UNBUILDABLE = "unbuildable"  #: the state's workspace or environment could not be made
    INVALID = "invalid"  #: it ran, but not what was asked: wrong code, mock data, too few steps
    LOST = "lost"  #: the worker or node went away; says nothing about the state


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The instant of the highest allocation, on the worst rank."""

    rank: int
    step: int  #: counted from 0
    phase: str  #: build, forward, backward or step
    instant: str  #: the module (or operation) that was running, e.g. "decoder.layers.3.mlp backward"
    allocated_bytes: int
    reserved_bytes: int  #: equal to allocated where the device has no caching allocator
    breakdown: MemoryBreakdown

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "breakdown": self.breakdown.to_json()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Peak:
        return cls(**{**row, "breakdown": MemoryBreakdown.from_json(row["breakdown"])})


@dataclass(frozen=True, kw_only=True)
class Step:
    """One optimizer step; bytes are of the worst rank, tokens the sum over ranks."""

    step: int
    peak_bytes: int
    retained_bytes: int  #: still allocated after the step
    seconds: float
    loss_tokens: int  #: tokens that the loss counts
    image_tokens: int  #: tokens that stand for image patches in the language model
    padding_tokens: int
    patches: int = 0  #: image patches that the vision tower saw
    rank_load: float = 0.0  #: the most tokens that one rank's experts got, over the mean; 0: not known
    #: the most tokens that one expert got in one layer, over the mean; 0: not known
    expert_load: float = 0.0
    tokens: int = 0  #: all that the model was fed, prompts and padding included; 0: not known
    sequences: int = 0  #: samples, packed ones counted one by one; 0: not known
    preparations: int = 0  #: graphs that were compiled or captured in it, on the rank with the most

    @property
    def useful_tokens(self) -> int:
        return self.loss_tokens + self.image_tokens


#: Without so many steady steps nothing is timed: one alone may be a hiccup.
FEWEST_TIMED_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the steps of a run held, how long they took, and which parts of the model they trained."""

    steps: tuple[Step, ...]
    warmup_steps: int = 1  #: of the first, that do not count for speed
    trainable: Mapping[str, int] = field(default_factory=dict)  #: component to trainable parameters

    @property
    def timed_steps(self) -> tuple[Step, ...]:
        """The window of the steady steps: those after the warm-up.

        Steps that still compile or capture graphs directly after the warm-up belong to it. A later one
        counts as any other: a job that compiles again and again is slow. So does an early one where too
        few steps would be left.
        """
        window = self.steps[self.warmup_steps :]
        settled = window
        while settled and settled[0].preparations:
            settled = settled[1:]
        return settled if len(settled) >= FEWEST_TIMED_STEPS else window

    @property
    def useful_tokens_per_second(self) -> float | None:
        """Loss and image tokens of the timed steps over their seconds; None where none was timed.

        The total, and not a median of steps: steps hold different work, so that a median would be the
        rate of whichever step is in the middle; and what makes only some steps slow (a loader that
        stalls, a cache that is emptied) is a slow-down too, which a median does not see. What comes once
        in a run makes a trial an outlier, and those are told by repeats (`spread`).
        """
        seconds = sum(step.seconds for step in self.timed_steps)
        tokens = sum(step.useful_tokens for step in self.timed_steps)
        return tokens / seconds if seconds > 0 else None


@dataclass(frozen=True, kw_only=True)
class Control:
    """A run of the good end on the same worker, beside a trial: how fast this machine was at that time."""

    state: State
    outcome: Outcome
    reason: str = ""
    work: Work
    seconds: float = 0.0  #: wall time of the whole run

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state.to_json(),
            "outcome": self.outcome.value,
            "reason": self.reason,
            "steps": [dict(step.__dict__) for step in self.work.steps],
            "warmup_steps": self.work.warmup_steps,
            "trainable": dict(self.work.trainable),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Control:
        return cls(
            state=State.from_json(row["state"]),
            outcome=Outcome(row["outcome"]),
            reason=row["reason"],
            work=Work(
                steps=tuple(Step(**step) for step in row["steps"]),
                warmup_steps=row["warmup_steps"],
                trainable=row["trainable"],
            ),
            seconds=float(row["seconds"]),
        )


@dataclass(frozen=True, kw_only=True)
class Retained:
    """What was still allocated after a step, on the worst rank."""

    step: int
    breakdown: MemoryBreakdown


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The allocation that was refused."""

    component: str
    phase: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    path: str = ""  #: of the module that ran
    largest_free_block_bytes: int | None = None  #: of what the allocator held; None: not known


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """What one rank used and was given, over the whole run."""

    rank: int
    peak_bytes: int
    reserved_bytes: int
    seconds: float  #: of its steps after the first, on average
    loss_tokens: int = 0
    image_tokens: int = 0
    expert_tokens: int = 0  #: rows that its routed experts were given
    outside_bytes: int | None = None  #: in use on its device outside of the allocator; None: not known


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that one trial found out. Everything but the outcome may be missing."""

    outcome: Outcome
    reason: str = ""  #: one sentence for people: why this outcome
    state: State
    environment_key: str = ""
    hardware: str = ""  #: e.g. "cpu" or "NVIDIA H200"
    device: str = ""  #: cuda, cpu or dry_run
    worker: str = ""  #: which worker process measured it
    profile_digest: str = ""
    config_digest: str = ""
    capacity_bytes: int | None = None  #: the enforced limit; None: measured without one
    peak: Peak | None = None
    summits: tuple[Peak, ...] = ()  #: of each phase the highest instant, on the rank of the peak
    retained: tuple[Retained, ...] = ()  #: after the first and the last step
    steps: tuple[Step, ...] = ()
    warmup_steps: int = 1  #: of the first steps, that do not count for speed
    control: Control | None = None  #: None: the profile asks for none, or it was not needed
    time: TimeBreakdown = field(default_factory=TimeBreakdown)
    oom: OutOfMemory | None = None
    number: float | None = None  #: what a command of the requester's own told, in a unit of its own
    signature: str = ""  #: which failure; "" unless it failed
    doubtful: bool = False  #: a failure that both code and chance cause, such as an illegal memory access
    #: held by other processes before the trial, on the fullest of its GPUs; None: no GPU, or not known
    gpu_bytes_of_others: int | None = None
    real_data: bool | None = None
    images: int = 0  #: images seen over all steps and ranks
    trainable: Mapping[str, int] = field(default_factory=dict)  #: component to trainable parameters
    imports: Mapping[str, str] = field(default_factory=dict)  #: module to file
    patches: Mapping[str, int] = field(default_factory=dict)  #: stand-in to how often it was used
    ranks: tuple[RankShare, ...] = ()  #: by rank
    unseen: tuple[str, ...] = ()  #: what the probe could not see, in its own words
    notes: tuple[str, ...] = ()  #: observations that a reader must know, e.g. forced load balancing
    artifacts: tuple[str, ...] = ()
    seconds: float = 0.0  #: wall time of the whole trial

    @property
    def work(self) -> Work:
        return Work(steps=self.steps, warmup_steps=self.warmup_steps, trainable=self.trainable)

    @property
    def useful_tokens_per_second(self) -> float | None:
        """As `Work` has it; what the machine's pace makes of it is the judgement's matter."""
        return self.work.useful_tokens_per_second

    def evolve(self, **changes: Any) -> Measurement:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "state": self.state.to_json(),
            "environment_key": self.environment_key,
            "hardware": self.hardware,
            "device": self.device,
            "worker": self.worker,
            "profile_digest": self.profile_digest,
            "config_digest": self.config_digest,
            "capacity_bytes": self.capacity_bytes,
            "peak": self.peak.to_json() if self.peak else None,
            "summits": [summit.to_json() for summit in self.summits],
            "retained": [
                {"step": kept.step, "breakdown": kept.breakdown.to_json()} for kept in self.retained
            ],
            "steps": [dict(step.__dict__) for step in self.steps],
            "warmup_steps": self.warmup_steps,
            "control": self.control.to_json() if self.control else None,
            "time": self.time.to_json(),
            "oom": dict(self.oom.__dict__) if self.oom else None,
            "number": self.number,
            "signature": self.signature,
            "doubtful": self.doubtful,
            "gpu_bytes_of_others": self.gpu_bytes_of_others,
            "data": {"real": self.real_data, "images": self.images},
            "trainable": dict(self.trainable),
            "imports": dict(self.imports),
            "patches": dict(self.patches),
            "ranks": [dict(share.__dict__) for share in self.ranks],
            "unseen": list(self.unseen),
            "notes": list(self.notes),
            "artifacts": list(self.artifacts),
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Measurement:
        """Raises ValueError for a shape that this version does not know."""
        if row.get("version") != VERSION:
            raise ValueError(
                f"measurement version {row.get('version')!r} is not known here (this reads {VERSION})"
            )
        try:
            return cls(
                outcome=Outcome(row["outcome"]),
                reason=row.get("reason", ""),
                state=State.from_json(row["state"]),
                environment_key=row.get("environment_key", ""),
                hardware=row.get("hardware", ""),
                device=row.get("device", ""),
                worker=row.get("worker", ""),
                profile_digest=row.get("profile_digest", ""),
                config_digest=row.get("config_digest", ""),
                capacity_bytes=row.get("capacity_bytes"),
                peak=Peak.from_json(row["peak"]) if row.get("peak") else None,
                summits=tuple(Peak.from_json(summit) for summit in row.get("summits", ())),
                retained=tuple(
                    Retained(step=kept["step"], breakdown=MemoryBreakdown.from_json(kept["breakdown"]))
                    for kept in row.get("retained", ())
                ),
                steps=tuple(Step(**step) for step in row.get("steps", ())),
                warmup_steps=row.get("warmup_steps", 1),
                control=Control.from_json(row["control"]) if row.get("control") else None,
                time=TimeBreakdown.from_json(row.get("time", ())),
                oom=OutOfMemory(**row["oom"]) if row.get("oom") else None,
                number=row.get("number"),
                signature=row.get("signature", ""),
                doubtful=row.get("doubtful", False),
                gpu_bytes_of_others=row.get("gpu_bytes_of_others"),
                real_data=row.get("data", {}).get("real"),
                images=row.get("data", {}).get("images", 0),
                trainable=row.get("trainable", {}),
                imports=row.get("imports", {}),
                patches=row.get("patches", {}),
                ranks=tuple(RankShare(**share) for share in row.get("ranks", ())),
                unseen=tuple(row.get("unseen", ())),
                notes=tuple(row.get("notes", ())),
                artifacts=tuple(row.get("artifacts", ())),
                seconds=float(row.get("seconds", 0.0)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a measurement: {error}") from error
