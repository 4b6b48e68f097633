"""Workspaces from real mirrors: content, pins, what jobs do to kept copies, eviction, workers at once."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue, RepositoryEntry
from bisection.adapters.mirror import MirrorError
from bisection.commits import State
from tests.repository_scene import RepositoryScene
from workers.workspaces import Workspace, WorkspaceRefused, Workspaces

#: Python 3.12 warns of a fork beside another test's threads; the child here takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class Host:
    """A worker host with one repository that pins another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.outer = RepositoryScene(folder / "outer")
        self.core = RepositoryScene(folder / "core")
        (folder / "catalogue" / "repositories").mkdir(parents=True)
        self.register("core", self.core)
        self.register("outer", self.outer, pins={"vendor/core": "core"})
        self._copies = 0

    def register(self, name: str, scene: RepositoryScene, **fields: object) -> None:
        row = {"name": name, "url": scene.url, **fields}
        (self.folder / "catalogue" / "repositories" / f"{name}.yaml").write_text(yaml.safe_dump(row))

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.folder / "catalogue")

    @property
    def repository(self) -> RepositoryEntry:
        return self.catalogue.repository("outer")

    def workspaces(self, **options: int) -> Workspaces:
        return Workspaces(self.root, self.catalogue, **options)

    def workspace(self, state: State, **options: int) -> Workspace:
        self._copies += 1
        target = self.folder / f"copy-{self._copies}"
        return self.workspaces(**options).check_out(self.repository, state, target)

    def check_out(self, state: State, **options: int) -> Path:
        return self.workspace(state, **options).folder

    def use(self, state: State, **options: int) -> None:
        """A trial that does nothing: its copy is kept."""
        self.workspaces(**options).give_back(self.workspace(state, **options))

    def kept(self) -> list[Path]:
        return sorted((self.root / "workspaces").glob("*"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_workspace_is_the_commit_and_what_it_pins(host: Host) -> None:
    old = host.core.commit("core", core__py="1")
    new = host.core.commit("core", core__py="2")
    host.outer.commit("outer", train__py="x")
    host.outer.pin("vendor/core", old)
    commit = host.outer.commit_index("pin")
    assert files(host.check_out(State(commit=commit))) == {"train.py": "x", "vendor/core/core.py": "1"}
    moved = State(commit=commit, pins=(("vendor/core", new),))
    assert files(host.check_out(moved)) == {"train.py": "x", "vendor/core/core.py": "2"}


def test_a_pin_that_is_not_registered_stays_an_empty_folder(host: Host) -> None:
    host.outer.commit("outer", train__py="x")
    host.outer.pin("docs/theme", "1" * 40)
    folder = host.check_out(State(commit=host.outer.commit_index("pin")))
    assert list((folder / "docs" / "theme").iterdir()) == []


def test_a_state_that_overrides_a_pin_the_commit_lacks_is_refused(host: Host) -> None:
    commit = host.outer.commit("outer", train__py="x")
    with pytest.raises(WorkspaceRefused, match="no registered pin at vendor/core"):
        host.check_out(State(commit=commit, pins=(("vendor/core", "1" * 40),)))


def test_a_pinned_commit_that_nobody_has_is_told(host: Host) -> None:
    host.core.commit("core", core__py="1")
    host.outer.commit("outer", train__py="x")
    host.outer.pin("vendor/core", "1" * 40)
    with pytest.raises(MirrorError, match="not even when asked for by its hash"):
        host.check_out(State(commit=host.outer.commit_index("pin")))


def test_states_with_equal_files_have_one_key(host: Host) -> None:
    first = host.outer.commit("one", a="1")
    second = host.outer.commit("two", a="2")
    third = host.outer.commit("back", a="1")
    keys = [host.workspace(State(commit=commit)).key for commit in (first, second)]
    assert host.workspace(State(commit=third, packages=(("x", "1"),))).key == keys[0] != keys[1]


def test_what_a_run_writes_into_its_files_stays_in_its_own_copy(host: Host) -> None:
    state = State(commit=host.outer.commit("one", a="1"))
    mine = host.check_out(state)
    with (mine / "a").open("r+") as file:
        file.write("dirty")
    (mine / "new").write_text("x")
    assert files(host.check_out(state)) == {"a": "1"}


def test_the_next_state_is_written_as_a_difference(host: Host) -> None:
    old, new = host.core.commit("core", core__py="1", same="x"), host.core.commit("core", core__py="2")
    host.outer.commit("outer", train__py="x", gone="y", folder___file="z")
    host.outer.pin("vendor/core", old)
    first = host.outer.commit_index("pin")
    before = host.workspace(State(commit=first))
    inodes = {path: (before.folder / path).stat().st_ino for path in ("train.py", "vendor/core/same")}
    host.workspaces().give_back(before)
    host.outer.git("rm", "-q", "-r", "gone", "folder")
    host.outer.write("folder", "now a file")
    host.outer.git("add", "folder")
    host.outer.pin("vendor/core", new)
    after = host.check_out(State(commit=host.outer.commit_index("moved")))
    wanted = {"folder": "now a file", "train.py": "x", "vendor/core/core.py": "2", "vendor/core/same": "x"}
    assert files(after) == wanted
    assert {path: (after / path).stat().st_ino for path in inodes} == inodes
    assert host.kept() == [], "the kept copy is the workspace now"


def _dressed_up(folder: Path) -> None:
    facts = (folder / "a").stat()
    (folder / "a").write_text("9")
    os.utime(folder / "a", ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _led_away(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "b").write_text("precious")
    shutil.rmtree(folder / "in")
    (folder / "in").symlink_to(outside)


JOBS: dict[str, Callable[[Path], object]] = {
    "rewrites a file in place": lambda folder: (folder / "a").write_text("longer than before"),
    "rewrites a file and sets its time back": _dressed_up,
    "removes a file": lambda folder: (folder / "in" / "b").unlink(),
    "adds files and folders": lambda folder: (folder / "in" / "cache" / "deep").mkdir(parents=True),
    "makes a file a program": lambda folder: (folder / "a").chmod(0o755),
    "puts a link where a folder was": _led_away,
    "locks a folder": lambda folder: (folder / "in").chmod(0o500),
    "removes everything": lambda folder: shutil.rmtree(folder),
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("when", ["in the trial", "while the copy lies there"])
def test_nothing_that_a_job_does_to_its_copy_reaches_the_next_trial(host: Host, job: str, when: str) -> None:
    state = State(commit=host.outer.commit("one", a="1", in___b="2"))
    mine = host.workspace(state)
    outside = mine.folder.parent / "outside"
    if when == "in the trial":
        JOBS[job](mine.folder)
    host.workspaces().give_back(mine)
    if when != "in the trial":
        JOBS[job](host.kept()[0] / "tree")
        outside = host.kept()[0] / "outside"
    kept = len(host.kept())
    after = host.workspace(state)
    assert files(after.folder) == {"a": "1", "in/b": "2"}
    assert not (after.folder / "in" / "cache").exists()
    assert not (after.folder / "in").is_symlink()
    assert os.stat(after.folder / "a").st_mode & 0o111 == 0
    assert len(host.kept()) == max(0, kept - 1)
    if outside.exists():
        assert (outside / "b").read_text() == "precious"


@pytest.mark.parametrize("damage", ["no record", "half a record", "another version", "no files"])
def test_a_damaged_copy_is_thrown_away(host: Host, damage: str) -> None:
    state = State(commit=host.outer.commit("one", a="1", b="2"))
    host.use(state)
    kept = host.kept()[0]
    record = kept / "record.json"
    if damage == "no record":
        record.unlink()
    elif damage == "half a record":
        record.write_text(record.read_text()[:40])
    elif damage == "another version":
        record.write_text(record.read_text().replace('"version": 1', '"version": 0'))
    else:
        shutil.rmtree(kept / "tree")
    assert files(host.check_out(state)) == {"a": "1", "b": "2"}


def test_a_mirror_that_lacks_a_file_is_made_anew_while_it_is_written(host: Host) -> None:
    core = host.core.commit("core", core__py="1")
    host.outer.commit("outer", a="1", b="2")
    host.outer.pin("vendor/core", core)
    state = State(commit=host.outer.commit_index("pin"))
    host.check_out(state)  # fetches both mirrors
    wanted = {"a": "1", "b": "2", "vendor/core/core.py": "1"}
    for name, scene, file in (("outer", host.outer, "b"), ("core", host.core, "core.py")):
        blob = scene.git("rev-parse", f"HEAD:{file}")
        broken = host.root / "mirrors" / f"{name}.git" / "objects" / blob[:2] / blob[2:]
        # Its header tells the right size, so that only reading it shows the damage.
        whole = zlib.decompress(broken.read_bytes())
        broken.chmod(0o644)
        broken.write_bytes(zlib.compress(whole)[:-4] + b"junk")
        assert files(host.check_out(state)) == wanted
        assert (host.root / "mirrors" / f".damaged-{name}.git").is_dir()


def test_what_was_longest_not_used_goes_when_the_disk_budget_is_full(host: Host) -> None:
    states = [State(commit=host.outer.commit("x", a=letter * 100)) for letter in "abc"]
    copies = [host.workspace(state, budget_bytes=250) for state in states]
    for copy in (copies[1], copies[0], copies[2]):
        host.workspaces(budget_bytes=250).give_back(copy)
    left = {(path / "tree" / "a").read_text()[0] for path in host.kept()}
    assert left == {"a", "c"}


def test_a_state_larger_than_the_budget_is_refused(host: Host) -> None:
    with pytest.raises(WorkspaceRefused, match="1000 bytes of files, more than the 10"):
        host.check_out(State(commit=host.outer.commit("x", a="a" * 1000)), budget_bytes=10)


def test_a_link_out_of_the_tree_is_refused_and_leaves_nothing(host: Host) -> None:
    os.symlink("../../../secret", host.outer.folder / "link")
    with pytest.raises(WorkspaceRefused, match="leads outside"):
        host.check_out(State(commit=host.outer.commit("hostile")))
    assert host.kept() == []
    assert not list(host.folder.glob("copy-*"))


def test_a_pinned_tree_cannot_come_through_a_link(host: Host, tmp_path: Path) -> None:
    core = host.core.commit("core", core__py="1")
    (host.outer.folder / "elsewhere").mkdir()
    host.outer.write("elsewhere/x", "1")
    os.symlink("elsewhere", host.outer.folder / "vendor")
    host.outer.commit("link")
    tree = host.outer.git("ls-tree", "HEAD")
    pinned = host.outer.git("mktree", "--missing", stdin=f"160000 commit {core}\tcore\n".encode())
    rows = []
    for row in tree.splitlines():
        mode, _, target = row.split("\t")[0].split()
        rows.append((mode, row.split("\t")[1], target))
    rows.append(("40000", "vendor", pinned))
    raw = b"".join(
        f"{mode.lstrip('0')} {name}".encode() + b"\0" + bytes.fromhex(target) for mode, name, target in rows
    )
    commit = host.outer.commit_raw_tree("hostile", raw)
    with pytest.raises(WorkspaceRefused):
        host.check_out(State(commit=commit))


def _check_out_many(folder: Path, states: list[State], number: int) -> None:
    catalogue = Catalogue(folder / "catalogue")
    workspaces = Workspaces(folder / "root", catalogue, budget_bytes=2500)
    for turn, state in enumerate(states * 3):
        target = folder / f"worker-{number}-{turn}"
        workspace = workspaces.check_out(catalogue.repository("outer"), state, target)
        letters = {path.read_text() for path in target.rglob("*") if path.is_file()}
        assert len(letters) == 1
        assert len(list(target.iterdir())) == 10
        (target / f"f{turn % 10}").write_text("dirty")
        workspaces.give_back(workspace)


def test_workers_at_once_with_eviction_never_see_half_a_workspace(host: Host) -> None:
    states = []
    for letter in "abcd":
        for number in range(10):
            host.outer.write(f"f{number}", letter * 100)
        states.append(State(commit=host.outer.commit(letter)))
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=_check_out_many, args=(host.folder, states[n % 4 :] + states[: n % 4], n))
        for n in range(6)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 6
