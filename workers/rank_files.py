"""What the probe left on disk, checked before it is believed.

The files are written inside the training job, by whatever code a commit brings: they
are bounded, parsed as strict JSON, checked field by field, and never unpickled.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from memory_models.breakdown import Activity, Category, Component, Phase

#: The thinned timeline has 400 points and a run some hundred steps: a few hundred kilobytes.
RANK_FILE_LIMIT_BYTES = 8 * 2**20

#: A resolved configuration has some ten levels; every reader of one after us recurses.
_DEEPEST = 100
_TOO_DEEP = f"it is nested deeper than {_DEEPEST} levels"
_SURROGATE = re.compile("[\ud800-\udfff]")

Bytes = Annotated[int, Field(ge=0, le=2**50, strict=True)]
Count = Annotated[int, Field(ge=0, le=2**60, strict=True)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False, le=1e9)]
Text = Annotated[str, Field(max_length=4000)]
Short = Annotated[str, Field(max_length=500)]


class RankFileError(ValueError):
    """A rank's file is not what the probe writes."""


class _Shape(BaseModel):
    """Fields that a newer probe adds are left out, not refused."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PeakCell(_Shape):
    component: Component
    category: Category
    bytes: Bytes


class RankPeak(_Shape):
    rank: Count
    step: Annotated[int, Field(ge=-1)]
    phase: Short
    instant: Short
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    breakdown: Annotated[tuple[PeakCell, ...], Field(max_length=200)]

    @model_validator(mode="after")
    def _cells_sum_to_the_total(self) -> Self:
        total = sum(cell.bytes for cell in self.breakdown)
        if total != self.allocated_bytes:
            raise ValueError(f"the breakdown sums to {total} bytes, the peak is {self.allocated_bytes}")
        return self


class RankInstant(_Shape):
    """A point of the course of allocated bytes: the highest total while one module ran in one phase."""

    step: Annotated[int, Field(ge=-1)]
    phase: Short
    instant: Short
    allocated_bytes: Bytes


class RankRetained(_Shape):
    step: Count
    breakdown: Annotated[tuple[PeakCell, ...], Field(max_length=200)]


class RankStep(_Shape):
    step: Count
    peak_bytes: Bytes
    retained_bytes: Bytes
    seconds: Seconds
    loss_tokens: Count
    image_tokens: Count
    padding_tokens: Count
    patches: Count = 0
    expert_tokens: Count = 0
    expert_calls: Count = 0
    most_expert_tokens: Count = 0
    tokens: Count = 0
    sequences: Count = 0
    preparations: Count = 0


class TimeRow(_Shape):
    component: Activity
    phase: Phase
    seconds: Seconds


class Refusal(_Shape):
    component: Short
    phase: Short
    requested_bytes: Bytes
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    path: Short = ""
    largest_free_block_bytes: Bytes | None = None


class RankWatch(_Shape):
    """What only a GPU's rank has."""

    outside_bytes: Bytes | None = None


class RankError(_Shape):
    type: Short
    message: Annotated[str, Field(max_length=1_000_000)] = ""
    frames: Annotated[tuple[str, ...], Field(max_length=2000)] = ()
    text: Annotated[str, Field(max_length=20_000)] = ""


class RankCommand(_Shape):
    """What became of a command that knows nothing of the probe (`script_job`)."""

    verdict: Literal["good", "bad", "skip", "abort"]
    said: Short  #: a sentence: how it ended
    number: Annotated[float, Field(allow_inf_nan=False)] | None = None


class RankData(_Shape):
    real: bool | None  #: of a dry run nobody can say: its data have sizes and no values
    images: Count


class RankFile(_Shape):
    """`rank-<R>.json`, version 1."""

    version: Literal[1]
    rank: Count
    world_size: Annotated[int, Field(ge=1, le=100_000)]
    status: Literal["completed", "out_of_memory", "failed"]
    error: RankError | None = None
    invalid: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    device: Short
    hardware: Short
    torch: Short = ""
    peak: RankPeak | None = None
    summits: Annotated[tuple[RankPeak, ...], Field(max_length=10)] = ()
    retained: Annotated[tuple[RankRetained, ...], Field(max_length=10)] = ()
    steps: Annotated[tuple[RankStep, ...], Field(max_length=20_000)] = ()
    instants: Annotated[tuple[RankInstant, ...], Field(max_length=2000)] = ()
    time: Annotated[tuple[TimeRow, ...], Field(max_length=200)] = ()
    oom: Refusal | None = None
    data: RankData
    trainable: Annotated[dict[Short, Count], Field(max_length=100)] = {}
    imports: Annotated[dict[Short, Text], Field(max_length=2000)] = {}
    patches: Annotated[dict[Short, Count], Field(max_length=500)] = {}
    unseen: Annotated[tuple[Text, ...], Field(max_length=50)] = ()
    watch: RankWatch | None = None
    command: RankCommand | None = None
    #: of a dry run: the ranks that were rehearsed, each by a process of its own
    rehearsed: Annotated[tuple[Count, ...], Field(max_length=4096)] = ()
    notes: Annotated[tuple[Text, ...], Field(max_length=200)] = ()


def expected_ranks(files: Mapping[int, RankFile], processes: int) -> Sequence[int]:
    """Who must have left a file: each process; of a dry run, each rank that rank 0 says was rehearsed."""
    first = files.get(0)
    return first.rehearsed if first and first.rehearsed else range(processes)


def read_rank_files(folder: Path, processes: int, world_size: int | None = None) -> dict[int, RankFile]:
    """By rank; a rank without a file is left out. Raises RankFileError for one that is not as it must be.

    ``world_size`` is that of the job where it is not the number of processes.
    """
    world_size = world_size or processes
    first = _read(folder, range(1), world_size)
    return first | _read(folder, [rank for rank in expected_ranks(first, processes) if rank], world_size)


def _read(folder: Path, ranks: Iterable[int], world_size: int) -> dict[int, RankFile]:
    found = {}
    for rank in ranks:
        content = read_plain_file(folder / f"rank-{rank}.json", RANK_FILE_LIMIT_BYTES)
        if content is None:
            continue
        try:
            file = RankFile.model_validate(parse_strictly(content))
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"])
            raise RankFileError(f"rank {rank}'s file, {place or 'as a whole'}: {problem['msg']}") from error
        except ValueError as error:
            raise RankFileError(f"rank {rank}'s file is not JSON: {error}") from error
        if file.rank != rank or file.world_size != world_size:
            raise RankFileError(
                f"rank {rank}'s file says it is rank {file.rank} of {file.world_size}, not of {world_size}"
            )
        found[rank] = file
    return found


def read_plain_file(path: Path, limit_bytes: int) -> bytes | None:
    """A regular file's content; None if there is none. Raises RankFileError for a link or a large one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RankFileError(f"{path.name} cannot be read: {error.strerror}") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise RankFileError(f"{path.name} is no plain file")
        if facts.st_size > limit_bytes:
            raise RankFileError(f"{path.name} has {facts.st_size} bytes, more than {limit_bytes}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(limit_bytes)
    finally:
        os.close(descriptor)


def parse_strictly(content: bytes) -> Any:
    """JSON in UTF-8 that can be written again: every number finite, every text whole Unicode.

    Half a surrogate pair in a text becomes U+FFFD: a value is worth more than its odd letter.
    Raises ValueError, also for numbers too large for a float and for nesting deeper than 100.
    """
    try:
        row = json.loads(content.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    return _writable(row, 0)


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        _refuse(word[:40])
    return number


def _writable(value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_writable(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", key): _writable(item, depth + 1) for key, item in value.items()}
    return value
