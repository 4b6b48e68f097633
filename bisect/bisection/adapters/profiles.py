"""A profile: a training job that an installation can repeat at any commit of a repository.

Shapes of `profiles/*.yaml`, checked at reading. How commits of one era are launched stands in
launch_adapters.py; the folder that holds the files in catalogue.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from bisection.adapters.catalogue_fields import Bytes, Name, PathInTree, Shape, Text, inside
from bisection.adapters.containers import Container
from bisection.adapters.dry_runs import DryRun
from bisection.adapters.isolation import Isolation
from bisection.adapters.launch_adapters import LaunchAdapter, Renamed
from bisection.adapters.queue import CONTROL
from bisection.adapters.training_environments import Environment
from bisection.criteria import Criterion, CriterionKind
from bisection.measurement import FEWEST_TIMED_STEPS

#: Filled in by the worker; a place must not hide one.
OWN_WORDS = frozenset(
    {"python", "environment", "workspace", "trial", "commit", "steps", "data", "key", "value"}
)
Place = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")]


#: What the launcher itself says to sbatch.
_SBATCH_OWN = re.compile(
    r"--(output|error|open-mode|wrap|export|export-file|job-name|nodes|ntasks|ntasks-per-node|parsable|requeue"
    r"|no-requeue|array|chdir|test-only|wait)(=|$)"
)


def _sbatch_option(option: str) -> str:
    if not re.fullmatch(r"--[a-z][a-z-]*(=[!-~]+)?", option):
        raise ValueError(f"{option!r} must be one option of sbatch in its long form, like --gres=gpu:8")
    if _SBATCH_OWN.match(option):
        raise ValueError(f"{option!r} is set by firstbad itself; remove it")
    return option


class SlurmJob(Shape):
    """A trial runs as a job of a Slurm cluster, submitted by the worker; both share the worker's folder."""

    nodes: Annotated[int, Field(ge=1, le=512)] = 1  #: each runs the adapter's `processes`
    options: tuple[Annotated[Text, AfterValidator(_sbatch_option)], ...] = ()  #: of sbatch, in long form
    queue_seconds: Annotated[float, Field(gt=0)] = 86400.0  #: waiting longer than this, the trial is lost


class Data(Shape):
    """What is trained on. A criterion of memory or speed needs real data to mean anything."""

    kind: Literal["real", "mock"] = "real"
    path: Text | None = None  #: on the worker host; {data} in the command
    digest: Text | None = None  #: of the data set; a part of the profile's digest


class Privacy(Shape):
    """What a trial may tell of the data that it trained on."""

    #: ``stay``: no sample leaves the worker, neither its text nor its picture nor its path.
    #: ``leave``: logs, messages and configurations are kept as they are, but for credentials.
    samples: Literal["stay", "leave"] = "stay"


class Limits(Shape):
    """What one trial, and one bisection, may take."""

    trial_seconds: Annotated[float, Field(gt=0)] = 3600.0
    gpu_hours_without_approval: Annotated[float, Field(ge=0)] | None = None


class CriterionDefault(Shape):
    """What a bisection looks for where the request does not say; capacity from the profile if not here."""

    kind: CriterionKind
    capacity_bytes: Bytes | None = None
    threshold: Annotated[float, Field(gt=0)] | None = None
    signature: Text = ""


class Profile(Shape):
    """A training job that this installation can repeat at any commit of a repository."""

    name: Name
    description: Text = ""
    repository: Name
    relevant_paths: tuple[PathInTree, ...] = ()  #: prefixes that can change the repro; none: all
    environment: Environment
    launch: Annotated[tuple[LaunchAdapter, ...], Field(min_length=1)]  #: the first that fits is used
    renamed: tuple[Renamed, ...] = ()  #: settings that upstream renamed
    places: dict[Place, Text] = Field(
        default_factory=dict
    )  #: folders and files on the worker host; {name} in the commands
    slurm: SlurmJob | None = None  #: none: trials run on the worker's own host
    container: Container | None = None  #: how an environment of kind image is run
    isolation: Isolation | None = None  #: of a trial without a container; none: it has the worker's rights
    data: Data = Data()
    privacy: Privacy = Privacy()
    steps: Annotated[int, Field(ge=3, lt=2**31)] = 3  #: optimizer steps of a trial; fewer taken: INVALID
    warmup_steps: Annotated[int, Field(ge=1)] = 1  #: of these, that do not count for speed
    #: where speed is looked for, what else a worker runs beside each trial: how fast is it just now?
    control: Literal["good_end"] | None = None
    #: ``host``: the command sees to its devices itself, and nothing is measured on them
    device: Literal["cpu", "cuda", "host", "dry_run"] = "cpu"
    dry_run: DryRun | None = None  #: what a trial without a device pretends to have
    gpus: Annotated[int, Field(ge=0, lt=2**31)] = 0  #: of one trial, on all hosts
    queue: Name = "local"
    capacity_bytes: Bytes | None = None  #: of one device
    limits: Limits = Limits()
    by_hand: tuple[Text, ...] = ()  #: how people start the job, where that is not the newest command
    criterion: CriterionDefault | None = None
    expected_imports: dict[str, Text] = Field(
        default_factory=dict
    )  #: module to where its file must lie; may use {workspace}

    @field_validator("relevant_paths")
    @classmethod
    def _prefixes_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(inside(prefix) for prefix in value)

    @field_validator("places")
    @classmethod
    def _places_hide_no_word(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name in OWN_WORDS:
                raise ValueError(f"{name!r} is a word of firstbad's own; take another name")
        return value

    @field_validator("queue")
    @classmethod
    def _queue_is_for_trials(cls, value: str) -> str:
        if value == CONTROL:
            raise ValueError(
                f"is {value!r}, which serves the installation's own short tasks; "
                "name a pool, and start its workers with `firstbad worker --queue NAME`"
            )
        return value

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        if self.device == "cuda" and self.gpus < 1:
            raise ValueError("device cuda needs gpus of at least 1")
        self._dry_run_agrees()
        if self.slurm and self.environment.dockerfile:
            raise ValueError(
                "an image that a worker builds is not on a cluster's nodes: push one, and name it as `image`"
            )
        if (self.environment.kind == "image") != (self.container is not None):
            raise ValueError("environment.kind image and `container` (how it is run) need each other")
        if self.isolation and (self.container or self.slurm):
            raise ValueError(
                "isolation is for trials on the worker's own host without a container: a container has "
                "`network` and `memory_bytes` of its own, and a cluster's jobs are shut in by the cluster"
            )
        builders = ("docker", "podman")
        if self.container and self.environment.dockerfile and self.container.runtime not in builders:
            raise ValueError(
                f"{self.container.runtime} builds no Dockerfile: name docker or podman, or an `image`"
            )
        if self.container and self.container.runtime == "pyxis" and not self.slurm:
            raise ValueError("container.runtime pyxis needs `slurm`: it is a part of srun")
        if self.steps < self.warmup_steps + FEWEST_TIMED_STEPS:
            raise ValueError(
                f"steps is {self.steps}: after warmup_steps ({self.warmup_steps}) at least "
                f"{FEWEST_TIMED_STEPS} must be left to be timed"
            )
        if all(adapter.refused for adapter in self.launch):
            raise ValueError("launch needs at least one adapter with a command")
        self.default_criterion()
        return self

    def _dry_run_agrees(self) -> None:
        if (self.device == "dry_run") != (self.dry_run is not None):
            raise ValueError("device dry_run and the section `dry_run` (world_size, images) need each other")
        if self.dry_run is None:
            return
        if self.gpus or (self.slurm and self.slurm.nodes > 1):
            raise ValueError("a dry run uses no GPU and one host: leave gpus and slurm.nodes out")
        if any(adapter.processes > 1 for adapter in self.launch):
            raise ValueError(
                "a dry run is one process, whatever its world: set dry_run.world_size instead of processes"
            )
        if self.control or (self.criterion and self.criterion.kind is CriterionKind.THROUGHPUT):
            raise ValueError("a dry run has no seconds: leave control out, and look for memory or a crash")

    def default_criterion(self) -> Criterion | None:
        """The criterion for requests that bring none, or None where they must."""
        if self.criterion is None:
            return None
        values = self.criterion.model_dump()
        if self.criterion.kind is CriterionKind.OUT_OF_MEMORY:
            values["capacity_bytes"] = self.criterion.capacity_bytes or self.capacity_bytes
        return Criterion(**values)

    def refuses(self, criterion: Criterion) -> str:
        """Why a criterion cannot be judged by this job, as a part of a sentence; "" where it can."""
        if criterion.kind.is_metric and self.device != "host":
            return (
                f"a number of a command's own is told by `firstbad run` alone, not by profile {self.name!r}"
            )
        if self.dry_run and criterion.kind is CriterionKind.THROUGHPUT:
            return (
                f"trials of profile {self.name!r} are dry runs, which have no seconds to judge throughput by"
            )
        if self.data.kind == "mock" and criterion.kind is CriterionKind.THROUGHPUT:
            return (
                f"throughput means nothing on mock data, and profile {self.name!r} trains on them: "
                "runs without images look about twice as fast"
            )
        return ""

    @property
    def world_size(self) -> int:
        """Ranks of the job; of a dry run, those that it pretends to have."""
        if self.dry_run:
            return self.dry_run.world_size
        return max(self.gpus, *(adapter.processes for adapter in self.launch))

    @property
    def newest_adapter(self) -> LaunchAdapter:
        """The one for the newest commits, which is the last: how people start the job by hand."""
        return next(adapter for adapter in reversed(self.launch) if adapter.command)

    @property
    def environment_paths(self) -> tuple[str, ...]:
        """Files of the tree that decide the environment."""
        return self.environment.paths

    @property
    def digest(self) -> str:
        """sha256 over what decides a measurement; who may run it, where and why is left out."""
        decides = {
            "repository", "environment", "launch", "data", "steps", "device", "gpus", "expected_imports",
            *(["slurm"] if self.slurm else []), *(["places"] if self.places else []),
            *(["renamed"] if self.renamed else []), *(["container"] if self.container else []),
            *(["isolation"] if self.isolation else []),
            *(["dry_run"] if self.dry_run else []),
            *(["warmup_steps"] if self.warmup_steps > 1 else []),
            # What one profile may tell must not come to another by a measurement taken over.
            *(["privacy"] if self.privacy != Privacy() else []),
        }  # fmt: skip
        row = self.model_dump(mode="json", include=decides)
        row["trial_seconds"] = self.limits.trial_seconds
        return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
