"""Runs one trial: workspace, environment, launch under the probe and the supervisor, measurement.

Whatever goes wrong, a measurement comes out: what the state is to blame for as
UNBUILDABLE, CRASHED or INVALID, what this worker or its network is to blame for as
LOST. Nothing of a trial stays on the disk, and no process of it runs on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from bisection.adapters.catalogue import Catalogue, Profile, RepositoryEntry
from bisection.adapters.git_process import GitError
from bisection.adapters.mirror import DamagedMirror, MirrorError, Unreachable
from bisection.ledger import Trial
from bisection.measurement import Measurement, Outcome
from workers import containers, slurm_job
from workers.building import BuildHostError
from workers.credentials import without_credentials
from workers.environments import Environments, PreparedEnvironment, image_program
from workers.eras import NoAdapter, OverrideRefused, choose_adapter
from workers.gathering import gather
from workers.launchers import Ground, launch_here, launch_in_slurm
from workers.launching import Launch, plan_launch
from workers.outcomes import Remains
from workers.rank_files import RankFileError, read_plain_file
from workers.requirement_lock import Unbuildable
from workers.step_needs import kept_to_its_steps
from workers.supervision import Cancelled, SupervisorLost, read_bounded
from workers.supervisor import kill_marked
from workers.trial_evidence import ARTIFACT_LIMIT_BYTES, redaction_of, trial_evidence
from workers.uv_lock import plain_lock
from workers.withheld_logs import WithheldLogs
from workers.workspaces import Workspace, WorkspaceRefused, Workspaces

log = structlog.get_logger(__name__)

_PROGRESS_LIMIT_BYTES = 500
_TRAINING_STARTS = "training starts"
#: A worker makes its trial's folder at once after the lock.
_ABANDONED_SECONDS = 600.0
_LOG_LIMIT_BYTES = ARTIFACT_LIMIT_BYTES - 1024


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What was measured, and the evidence by name."""

    measurement: Measurement
    artifacts: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A trial's own folder, and the lock that is held as long as anything of the trial lives."""

    folder: Path
    lock: int
    mark: str  #: on every process of the trial, and in the lock's file

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def probe(self) -> Path:
        return self.folder / "probe"

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    def scrub(self, text: str) -> str:
        """The text without this trial's folders, so that two trials can be compared word for word."""
        return text.replace(str(self.workspace), "<workspace>").replace(str(self.folder), "<trial>")


def run_trial(
    trial: Trial,
    *,
    profile: Profile,
    repository: RepositoryEntry,
    catalogue: Catalogue,
    root: Path,
    overrides: Mapping[str, Any],
    capacity_bytes: int | None,
    full: bool = False,
    worker: str,
    pseudonym_key: bytes,
    cancelled: Callable[[], bool],
    progress: Callable[[str], None],
) -> TrialResult:
    """Runs the trial to its end. ``root`` holds this host's mirrors, workspaces, environments and trials.

    ``capacity_bytes`` is the limit to enforce in the job; None: measure without one. ``pseudonym_key`` is
    the installation's, for names that must not leave.
    ``full`` asks the probe for the allocations behind the peak too.
    ``cancelled`` is asked a few times a second; once true, all of it stops.
    """
    started = time.monotonic()
    known = Measurement(
        outcome=Outcome.LOST,
        state=trial.state,
        worker=worker,
        device=profile.device,
        profile_digest=profile.digest,
        capacity_bytes=capacity_bytes,
    )
    try:
        with _place(root / "trials", trial) as place:
            run = _Run(place, known, profile, root, pseudonym_key, full, cancelled, progress)
            result = run.to_the_end(trial, repository, catalogue, overrides)
    except Cancelled as error:
        result = _failed(known, Outcome.LOST, str(error))
    except Exception as error:
        log.exception("the trial failed on this worker's side", trial=trial.key)
        result = _failed(known, Outcome.LOST, f"this worker failed: {type(error).__name__}: {error}")
    measured = result.measurement
    return TrialResult(
        measurement=measured.evolve(
            seconds=time.monotonic() - started,
            artifacts=tuple(sorted(result.artifacts)),
            reason=without_credentials(measured.reason),
            signature=without_credentials(measured.signature),
            notes=tuple(without_credentials(note) for note in measured.notes),
            unseen=tuple(without_credentials(told) for told in measured.unseen),
        ),
        artifacts={
            name: without_credentials(content.decode(errors="replace")).encode()
            for name, content in result.artifacts.items()
        },
    )


class _Run:
    """One trial in its place, step by step."""

    def __init__(
        self,
        place: _Place,
        known: Measurement,
        profile: Profile,
        root: Path,
        pseudonym_key: bytes,
        full: bool,
        cancelled: Callable[[], bool],
        progress: Callable[[str], None],
    ) -> None:
        self._place = place
        self._known = known
        self._profile = profile
        self._root = root
        self._pseudonym_key = pseudonym_key
        self._full = full
        self._cancelled = cancelled
        self._progress = progress

    def to_the_end(
        self,
        trial: Trial,
        repository: RepositoryEntry,
        catalogue: Catalogue,
        overrides: Mapping[str, Any],
    ) -> TrialResult:
        workspaces = Workspaces(self._root, catalogue)
        workspace: Workspace | None = None
        try:
            workspace = workspaces.check_out(repository, trial.state, self._place.workspace, self._progress)
            return self._in_workspace(trial, workspace, overrides)
        except (Unreachable, DamagedMirror, GitError) as error:
            return _failed(self._known, Outcome.LOST, str(error))
        except (WorkspaceRefused, MirrorError) as error:
            return _failed(self._known, Outcome.UNBUILDABLE, str(error))
        finally:
            if workspace is not None:  # whatever ran in it was ended by its supervisor
                workspaces.give_back(workspace)

    def _in_workspace(self, trial: Trial, workspace: Workspace, overrides: Mapping[str, Any]) -> TrialResult:
        try:
            choose_adapter(self._profile, workspace.folder)  # before an environment is built for nothing
            environment = self._environment(trial, workspace)
            launch = plan_launch(
                self._profile,
                workspace.folder,
                environment,
                self._place.folder,
                overrides=overrides,
                capacity_bytes=self._known.capacity_bytes,
                commit=trial.state.commit,
                full=self._full,
            )
        except Unbuildable as error:
            artifacts = {"build.log": error.log.encode()[-ARTIFACT_LIMIT_BYTES:]}
            return _failed(self._known, Outcome.UNBUILDABLE, str(error), artifacts)
        except (NoAdapter, OverrideRefused) as error:
            return _failed(self._known, Outcome.UNBUILDABLE, str(error))
        except BuildHostError as error:
            return _failed(self._known, Outcome.LOST, f"this host could not build the environment: {error}")
        return self._train(trial, launch, environment)

    def _environment(self, trial: Trial, workspace: Workspace) -> PreparedEnvironment:
        wanted = self._profile.environment
        lock = None
        if wanted.lock:
            lock = plain_lock(
                wanted.lock, lambda path: self._text(workspace, path), must_be_current=wanted.locked
            )
        return Environments(self._root).prepare(
            wanted,
            lock,
            dict(trial.state.packages),
            tree=workspace.folder,
            image_program=image_program(self._profile),
            progress=self._progress,
            cancelled=self._cancelled,
        )

    def _text(self, workspace: Workspace, path: str) -> str | None:
        try:
            content = read_plain_file(workspace.folder / path, ARTIFACT_LIMIT_BYTES)
            return None if content is None else content.decode()
        except (RankFileError, UnicodeDecodeError) as error:
            raise Unbuildable("reading the lock", f"{path}: {error}") from error

    def _train(self, trial: Trial, launch: Launch, environment: PreparedEnvironment) -> TrialResult:
        limit = self._profile.limits.trial_seconds
        self._progress(self._told(""))
        ground = Ground(
            folder=self._place.folder,
            output=self._place.output,
            output_limit_bytes=_LOG_LIMIT_BYTES,
            time_limit_seconds=limit,
            cancelled=self._cancelled,
            say=lambda line: self._progress(self._told(line)),
            held=(self._place.lock, *environment.locks),
            mark=self._place.mark,
            gpus=self._profile.device == "cuda",
            isolation=self._profile.isolation,
        )
        try:
            slurm = self._profile.slurm
            container = self._profile.container
            if slurm:
                result = launch_in_slurm(launch, slurm, container, ground)
            else:
                result = launch_here(launch, container, ground)
        except SupervisorLost as error:
            return _failed(self._known, Outcome.LOST, str(error))
        output = read_bounded(self._place.output, ARTIFACT_LIMIT_BYTES)
        own_folders = tuple(
            self._place.workspace / folder
            for folder in choose_adapter(self._profile, launch.folder).python_path
        )
        redaction = redaction_of(
            self._profile,
            launch,
            trial_folder=self._place.folder,
            root=self._root,
            own_folders=(*own_folders, *_package_folders(environment)),
            key=self._pseudonym_key,
        )
        remains = Remains(
            result=result,
            probe_folder=self._place.probe,
            log=output,
            processes=launch.processes,
            world_size=launch.world_size,
            own_folders=own_folders,
            time_limit_seconds=limit,
            redaction=redaction,
        )
        measured = gather(remains, trial.state)
        artifacts = trial_evidence(
            launch,
            name=self._place.folder.name,
            log=output,
            probe_folder=self._place.probe,
            worst_rank=measured.peak.rank if measured.peak else 0,
            redaction=redaction,
            withheld=WithheldLogs(self._root),
            scrub=self._place.scrub,
        )
        config = artifacts.get("config.json")
        measured = kept_to_its_steps(measured, config, self._profile)
        return TrialResult(
            measurement=measured.evolve(
                worker=self._known.worker,
                device=measured.device or self._known.device,
                profile_digest=self._known.profile_digest,
                capacity_bytes=self._known.capacity_bytes,
                environment_key=environment.key,
                config_digest=hashlib.sha256(config).hexdigest() if config else "",
                reason=self._place.scrub(measured.reason),
                notes=tuple(redaction.text(note) for note in measured.notes),
                imports={
                    name: self._place.scrub(redaction.text(file)) for name, file in measured.imports.items()
                },
            ),
            artifacts=artifacts,
        )

    def _told(self, line: str) -> str:
        """What the probe says of its progress, or else Slurm of the job; a job without both says nothing."""
        try:
            content = read_plain_file(self._place.probe / "progress.txt", _PROGRESS_LIMIT_BYTES)
        except RankFileError:
            content = None
        told = content.decode(errors="replace").strip() if content else ""
        if told:
            return f"training: {told}"
        if self._profile.device == "host":
            return line or "the command runs"
        return line or _TRAINING_STARTS if self._profile.slurm else _TRAINING_STARTS


def _package_folders(environment: PreparedEnvironment) -> tuple[Path, ...]:
    """Where the job's packages lie: what they spell out of an error is code's own words, too."""
    if environment.image:
        return ()
    installed = environment.python.parent.parent.glob("lib/python*/site-packages")
    return (*(overlay.folder for overlay in environment.overlays), *installed)


def _failed(
    known: Measurement, outcome: Outcome, reason: str, artifacts: Mapping[str, bytes] | None = None
) -> TrialResult:
    return TrialResult(
        measurement=known.evolve(outcome=outcome, reason=reason[:2000]), artifacts=artifacts or {}
    )


@contextmanager
def _place(trials: Path, trial: Trial) -> Iterator[_Place]:
    """A fresh folder for the trial, gone afterwards; and so are those of workers that were killed."""
    trials.mkdir(parents=True, exist_ok=True)
    sweep_trials(trials)
    mark = uuid.uuid4().hex
    folder = trials / f"{trial.key}-{mark[:8]}"
    lock_path = trials / f"{folder.name}.lock"
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.write(lock, mark.encode())
        for name in ("home", "tmp", "probe"):
            (folder / name).mkdir(parents=True)
        yield _Place(folder=folder, lock=lock, mark=mark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock_path.unlink(missing_ok=True)
        os.close(lock)


def sweep_trials(trials: Path) -> None:
    """Ends what is left of trials whose worker was killed; before each trial, and as a worker starts.

    Removes the folders of trials whose lock nobody holds: their worker and supervisor are gone.

    Where both were killed at once, processes of the trial may live: the mark finds them.
    """
    for lock_path in trials.glob("*.lock"):
        with suppress(OSError):
            lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folder = lock_path.with_suffix("")
                if folder.exists():  # without one, its worker is between making and taking its lock
                    kill_marked(lock_path.read_text(encoding="utf-8") or folder.name)
                    slurm_job.cancel(folder)
                    containers.take_back(folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    lock_path.unlink(missing_ok=True)
                elif time.time() - lock_path.stat().st_mtime > _ABANDONED_SECONDS:
                    lock_path.unlink(missing_ok=True)  # that worker was killed in between
            finally:
                os.close(lock)
