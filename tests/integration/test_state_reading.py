"""What a state holds and what differs between two, read from real repositories and locks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue, CatalogueError, Profile
from bisection.adapters.mirror import Mirror
from bisection.commits import State
from bisection.openings import Change, FactorKind, PackageMove
from tests.repository_scene import RepositoryScene
from tests.wheel_scene import write_wheel
from workers.state_reading import StateReader

LIBRARY, KERNEL = "vendor/library", "vendor/library/vendor/kernel"
LOCK = "alpha==1.0\nbeta[x]==1.0 ; python_version < '4'\n"


class Pinned:
    """training pins library at vendor/library, and library pins kernel at vendor/kernel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kernel = RepositoryScene(folder / "kernel")
        self.library = RepositoryScene(folder / "library")
        self.training = RepositoryScene(folder / "training")
        self.register("kernel", self.kernel, {})
        self.register("library", self.library, {"vendor/kernel": "kernel"})
        self.register("training", self.training, {LIBRARY: "library"})
        self.kernels = [self.kernel.commit(f"k{n}", k__py=str(n)) for n in range(3)]
        self.libraries = [self.bump(self.library, "vendor/kernel", pin, l__py=pin) for pin in self.kernels]
        self.a = self.bump(self.training, LIBRARY, self.libraries[0], train__py="1", lock__txt=LOCK)

    def register(self, name: str, scene: RepositoryScene, pins: dict[str, str]) -> None:
        path = self.folder / "catalogue" / "repositories" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"name": name, "url": scene.url, "pins": pins}))

    @staticmethod
    def bump(scene: RepositoryScene, path: str, pin: str, **files: str) -> str:
        for name, content in files.items():
            scene.write(name.replace("__", "."), content)
            scene.git("add", name.replace("__", "."))
        scene.pin(path, pin)
        return scene.commit_index("bump")

    def reader(self, **changes: Any) -> StateReader:
        environment = {"kind": "venv", "lock": "lock.txt", "find_links": [str(self.folder / "wheels")]}
        row = {
            "name": "p",
            "repository": "training",
            "environment": environment,
            "launch": [{"command": ["{python}", "train.py"]}],
            **changes,
        }
        # Nothing is fetched beforehand: what is not there yet must be asked for.
        return StateReader(
            self.folder / "host", Catalogue(self.folder / "catalogue"), Profile.model_validate(row)
        )

    def change(self, after: str, path: str = "", **profile: Any) -> Change:
        """From the first commit to another one of the training repository."""
        other_host = Mirror(self.folder / "other.git", self.training.url)
        other_host.fetch()
        commits = [other_host.read_back(commit, 0)[0] for commit in (self.a, after)]
        reader = self.reader(**profile)
        return reader.change(State(commit=self.a), State(commit=after), path, commits[0], commits[1])


@pytest.fixture
def pinned(tmp_path: Path) -> Pinned:
    return Pinned(tmp_path)


def test_a_pin_below_a_pin_follows_the_one_above_it(pinned: Pinned) -> None:
    reader = pinned.reader()
    plain = State(commit=pinned.a)
    assert reader.pins(plain, "") == {LIBRARY: pinned.libraries[0]}
    assert reader.pins(plain, LIBRARY) == {KERNEL: pinned.kernels[0]}
    moved = State(commit=pinned.a, pins=((LIBRARY, pinned.libraries[2]),))
    assert reader.commit(moved, KERNEL) == pinned.kernels[2]
    both = State(commit=pinned.a, pins=((LIBRARY, pinned.libraries[2]), (KERNEL, pinned.kernels[1])))
    assert reader.commit(both, KERNEL) == pinned.kernels[1]


def test_overrides_that_say_what_is_there_anyway_are_dropped(pinned: Pinned) -> None:
    reader = pinned.reader()
    same = State(
        commit=pinned.a,
        pins=((LIBRARY, pinned.libraries[0]), (KERNEL, pinned.kernels[0])),
        packages=(("alpha", "1.0"), ("beta", "beta[x]==1.0 ; python_version < '4'"), ("gamma", "")),
    )
    assert reader.tidy(same) == State(commit=pinned.a)
    above = State(commit=pinned.a, pins=((LIBRARY, pinned.libraries[2]), (KERNEL, pinned.kernels[2])))
    assert reader.tidy(above) == State(commit=pinned.a, pins=((LIBRARY, pinned.libraries[2]),))


def test_what_a_commit_moves_is_told_apart(pinned: Pinned) -> None:
    after = pinned.bump(
        pinned.training,
        LIBRARY,
        pinned.libraries[2],
        train__py="2",
        lock__txt="alpha==1.2\nbeta[x,y]==1.0\nnew==1\n",
    )
    change = pinned.change(after)
    assert [factor.kind for factor in change.factors] == [FactorKind.LOCK, FactorKind.PIN, FactorKind.SOURCE]
    lock, pin, _ = change.factors
    assert (pin.path, pin.before, pin.after) == (LIBRARY, pinned.libraries[0], pinned.libraries[2])
    assert lock.packages == (
        PackageMove(name="alpha", before="1.0", after="1.2"),
        PackageMove(
            name="beta", before="beta[x]==1.0 ; python_version < '4'", after="beta[x,y]==1.0"
        ),
        PackageMove(name="new", before="", after="1"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "profile", "kinds"),
    [
        ({"README__md": "words"}, {}, []),
        ({"train__py": "2"}, {}, [FactorKind.SOURCE]),
        ({"train__py": "2"}, {"relevant_paths": ["src"]}, []),
        ({"lock__txt": "alpha==2.0\n"}, {}, [FactorKind.LOCK]),
        ({"lock__txt": "# another comment\n" + LOCK}, {}, []),
        # A lock that cannot be read cannot be switched: it stays with the source.
        ({"lock__txt": "alpha @ https://example.invalid/x.whl\n"}, {}, [FactorKind.SOURCE]),
    ],
)
def test_only_what_can_change_the_repro_is_a_factor(
    pinned: Pinned, files: dict[str, str], profile: dict[str, Any], kinds: list[FactorKind]
) -> None:
    after = pinned.bump(pinned.training, LIBRARY, pinned.libraries[0], **files)
    assert [factor.kind for factor in pinned.change(after, **profile).factors] == kinds


def test_of_an_interpreters_lock_only_the_overlays_count(pinned: Pinned) -> None:
    environment = {
        "kind": "interpreter", "python": sys.executable, "lock": "lock.txt", "overlay": ["Alpha"],
    }  # fmt: skip
    beta = pinned.bump(
        pinned.training, LIBRARY, pinned.libraries[0], lock__txt=LOCK.replace("beta[x]==1", "beta==2")
    )
    assert pinned.change(beta, environment=environment).factors == ()
    alpha = pinned.bump(
        pinned.training, LIBRARY, pinned.libraries[0], lock__txt=LOCK.replace("alpha==1", "alpha==2")
    )
    (factor,) = pinned.change(alpha, environment=environment).factors
    assert [move.name for move in factor.packages] == ["alpha"]


@pytest.mark.parametrize(
    ("environment", "kinds"),
    [
        ({"kind": "venv", "lock": "lock.txt", "inputs": ["docker"]}, [FactorKind.SOURCE]),
        ({"kind": "venv", "lock": "lock.txt"}, []),
        (
            {
                "kind": "image",
                "dockerfile": "docker/ci",
                "inputs": ["lock.txt"],
                "python": "/usr/bin/python3",
            },
            [FactorKind.SOURCE],
        ),
    ],
)
def test_what_builds_the_environment_goes_with_the_source(
    pinned: Pinned, environment: dict[str, Any], kinds: list[FactorKind]
) -> None:
    pinned.training.write("docker/ci", "FROM another\n")
    pinned.training.git("add", "docker/ci")
    b = pinned.training.commit_index("Another base image")
    container: dict[str, Any] = {"container": {"runtime": "podman"}} if environment["kind"] == "image" else {}
    change = pinned.change(b, environment=environment, relevant_paths=["train.py"], **container)
    assert [factor.kind for factor in change.factors] == kinds


def test_the_versions_between_are_those_that_lie_in_the_folders(pinned: Pinned) -> None:
    for version in ("0.9", "1.0", "1.2", "1.10", "1.9", "2.0", "2.0.post1"):
        write_wheel(pinned.folder / "wheels", "alpha", version, "")
    write_wheel(pinned.folder / "wheels", "alphabet", "1.5", "")
    after = pinned.bump(
        pinned.training, LIBRARY, pinned.libraries[0], lock__txt=LOCK.replace("alpha==1", "alpha==2")
    )
    assert pinned.change(after).versions == ("1.2", "1.9", "1.10")


def test_a_pin_that_comes_or_goes_belongs_to_the_source(pinned: Pinned) -> None:
    pinned.training.git("rm", "-q", "--cached", LIBRARY)
    after = pinned.training.commit_index("Drop the library")
    assert [factor.kind for factor in pinned.change(after).factors] == [FactorKind.SOURCE]


def test_a_path_that_nobody_registered_is_named(pinned: Pinned) -> None:
    reader = pinned.reader()
    with pytest.raises(CatalogueError, match="registers no pin at vendor/other"):
        reader.repository("vendor/other")
    with pytest.raises(CatalogueError, match="does not pin 'training'"):
        reader.path_of("training")
