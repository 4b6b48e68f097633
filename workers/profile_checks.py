"""Whether a trial of a profile could start on this host: all that a trial does before it trains.

The tip of the default branch is fetched, exported, matched with a launch adapter and given its
environment, exactly as for a trial, and then thrown away. Nothing is trained.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bisection.adapters.catalogue import Catalogue, Profile
from bisection.commits import State
from bisection.quantities import counted
from workers.environments import Environments, PreparedEnvironment, image_program
from workers.host_checks import Check, Health, check_bridge, check_torch, guarded
from workers.isolation_checks import check_isolation
from workers.launch_rules import broken_rules
from workers.launching import Launch, plan_launch
from workers.uv_lock import plain_lock
from workers.workspaces import Workspace, Workspaces, mirror_of

_FILE_LIMIT_BYTES = 2**20


def check_profile(
    profile: Profile, catalogue: Catalogue, root: Path, progress: Callable[[str], None]
) -> Iterator[Check]:
    """Check after check; after a broken one the later ones, which need it, are left out."""
    yield guarded("data", lambda: _data(profile))
    yield guarded("rules", lambda: _rules(profile))
    yield from (_place(name, path) for name, path in profile.places.items())
    if profile.isolation:
        shut_in = guarded("isolation", partial(check_isolation, profile.isolation))
        yield shut_in
        if shut_in.health is Health.BROKEN:
            return
    state: list[State] = []
    fetched = guarded("repository", lambda: _fetched(profile, catalogue, root, state))
    yield fetched
    if not state:
        return
    workspaces = Workspaces(root, catalogue)
    (root / "trials").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=root / "trials") as scratch:
        exported: list[Workspace] = []

        def export() -> Check:
            repository = catalogue.repository(profile.repository)
            workspace = workspaces.check_out(repository, state[0], Path(scratch) / "workspace", progress)
            exported.append(workspace)
            absent = [path for path in profile.relevant_paths if not (workspace.folder / path).exists()]
            if absent:
                return Check(
                    name="workspace",
                    health=Health.BROKEN,
                    found=f"no {', '.join(absent)} in it, which relevant_paths names",
                    mend="Correct relevant_paths: a path that no commit has makes all commits one state.",
                )
            pins = ", ".join(f"{path} at {pin[:10]}" for path, pin in workspace.pins.items())
            count = len(workspace.copy.records)
            return Check(
                name="workspace",
                health=Health.WELL,
                found=f"{count:,} files" + (f", {pins}" if pins else ""),
            )

        yield guarded("workspace", export)
        if not exported:
            return
        try:
            yield from _in_workspace(profile, exported[0], Path(scratch), root, progress)
        finally:
            workspaces.give_back(exported[0])


def _in_workspace(
    profile: Profile, workspace: Workspace, scratch: Path, root: Path, progress: Callable[[str], None]
) -> Iterator[Check]:
    made: list[PreparedEnvironment] = []

    def prepare() -> Check:
        def read(path: str) -> str | None:
            file = workspace.folder / path
            return file.read_bytes()[:_FILE_LIMIT_BYTES].decode() if file.is_file() else None

        path = profile.environment.lock
        locked = profile.environment.locked
        text = plain_lock(path, read, must_be_current=locked) if path is not None else None
        prepared = Environments(root).prepare(
            profile.environment,
            text,
            {},
            tree=workspace.folder,
            image_program=image_program(profile),
            progress=progress,
        )
        made.append(prepared)
        return Check(name="environment", health=Health.WELL, found=str(prepared.python))

    yield guarded("environment", prepare)
    if not made:
        return

    launches: list[Launch] = []

    def plan() -> Check:
        launch = plan_launch(
            profile, workspace.folder, made[0], scratch, overrides={}, capacity_bytes=profile.capacity_bytes
        )
        shown = shlex.join(launch.command).replace(str(scratch), "<trial>")
        world = f" of a world of {launch.world_size}, dry" if profile.dry_run else ""
        found = f"{counted(launch.processes, 'rank')}{world}: {shown}"
        launches.append(launch)
        return Check(name="launch", health=Health.WELL, found=found)

    yield guarded("launch", plan)
    if profile.slurm is None and not made[0].image:
        yield guarded("torch", lambda: check_torch(made[0].python, {"PATH": "/usr/local/bin:/usr/bin:/bin"}))
        if profile.dry_run and launches:
            yield guarded("bridge", lambda: check_bridge(made[0].python, launches[0].environment))


def _data(profile: Profile) -> Check:
    data = profile.data
    if profile.dry_run:
        images = counted(len(profile.dry_run.images), "image")
        return Check(
            name="data", health=Health.WELL, found=f"a dry run's own, {images} a sample, without values"
        )
    if data.kind == "mock":
        return Check(
            name="data",
            health=Health.DOUBTFUL,
            found="mock",
            mend="Name real data: image-free runs look about twice as fast, and memory is judged wrongly.",
        )
    if data.path is None:
        return Check(name="data", health=Health.WELL, found="real; the training script knows where it is")
    if not Path(data.path).exists():
        return Check(
            name="data",
            health=Health.BROKEN,
            found=f"{data.path} is not on this host",
            mend="Copy or mount the data there, or correct data.path in the profile.",
        )
    if data.digest is None:
        return Check(
            name="data",
            health=Health.DOUBTFUL,
            found=f"{data.path}, without a digest",
            mend="Set data.digest: without it nobody sees that two hosts train on different data.",
        )
    return Check(name="data", health=Health.WELL, found=data.path)


def _rules(profile: Profile) -> Check:
    broken = list(broken_rules(profile))
    if not broken:
        return Check(name="rules", health=Health.WELL, found="the commands keep the rules of honest trials")
    more = f" ({len(broken) - 1} more)" if len(broken) > 1 else ""
    mend = f"`firstbad profiles check {profile.name}` lists all of them."
    return Check(name="rules", health=Health.DOUBTFUL, found=broken[0] + more, mend=mend)


def _place(name: str, path: str) -> Check:
    if Path(path).exists():
        return Check(name=f"place {name}", health=Health.WELL, found=path)
    return Check(
        name=f"place {name}",
        health=Health.BROKEN,
        found=f"{path} is not on this host",
        mend=f"Put or mount it there, or correct places.{name} in the profile.",
    )


def _fetched(profile: Profile, catalogue: Catalogue, root: Path, state: list[State]) -> Check:
    repository = catalogue.repository(profile.repository)
    mirror = mirror_of(root, repository)
    mirror.fetch()
    commit = mirror.resolve(repository.default_branch)
    state.append(State(commit=commit))
    return Check(
        name="repository",
        health=Health.WELL,
        found=f"{repository.default_branch} of {repository.url} is {commit[:10]}",
    )
