"""Culprits that only carry the fault: opened down to where it began, by real workers in real repositories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import Client
from tests.e2e.installation import Installation, finish
from tests.e2e.nested import Nested


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("descents") / "home")
    installation.up()
    yield installation
    installation.down()


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    server = installation.wait_for_server()
    with Client(server.url, server.token) as client:
        yield client


@pytest.fixture
def nested(installation: Installation, tmp_path: Path) -> Nested:
    return Nested(installation, tmp_path)


def bisect(client: Client, good: Any, bad: Any, **more: Any) -> dict[str, Any]:
    return finish(client, {"profile": "nested", "good": good, "bad": bad, **more})


def levels(report: dict[str, Any]) -> list[str]:
    return [level["level"] for level in report["finding"]["descent"]]


def inner(report: dict[str, Any]) -> dict[str, Any]:
    """The innermost finding."""
    found: dict[str, Any] = report["finding"]["descent"][-1]
    return found


def library_line(nested: Nested, *sizes: int, pin: str | None = None) -> list[str]:
    """Commits of the library, each of another size, so that no two are one state."""
    return [
        nested.commit(f"library {n}", scene=nested.library, bytes=size, number=n, pin=pin)
        for n, size in enumerate(sizes)
    ]


def test_a_moved_pin_is_opened_two_deep_and_its_ends_are_not_measured_again(
    client: Client, nested: Nested
) -> None:
    kernel = [
        nested.commit(f"kernel {n}", scene=nested.kernel, bytes=(300 if n >= 5 else 100) + n)
        for n in range(9)
    ]
    library = [
        nested.commit(f"library {n}", scene=nested.library, bytes=100 + n, pin=kernel[8 if n >= 4 else 0])
        for n in range(7)
    ]
    first = nested.commit("training 0", bytes=700, pin=library[0])
    nested.commit("training 1", bytes=701)
    bump = nested.commit("Move the library", pin=library[6])
    last = nested.commit("training 3", bytes=703)
    report = bisect(client, first, last)
    finding = report["finding"]
    # library 4 moves its pin and its own plan, so what of it is guilty is asked first.
    assert (finding["kind"], finding["commits"]) == ("found", [bump]), finding
    assert levels(report) == ["pin", "factors", "pin"], finding
    in_library, _, in_kernel = finding["descent"]
    assert in_library["commits"] == [library[4]]
    assert in_kernel["commits"] == [kernel[5]]
    assert (in_kernel["path"], in_kernel["repository"]) == ("vendor/library/vendor/kernel", "kernel")
    assert f"{kernel[5][:10]} kernel 5" in in_kernel["names"]
    corners = [t for t in report["trials"] if t["state"] == {"commit": bump, "pins": {}, "packages": {}}]
    assert len(corners) <= 3


def test_a_bump_that_moves_lock_and_source_as_well_is_told_apart(client: Client, nested: Nested) -> None:
    nested.write_profile_with_lock("alpha")
    nested.wheel("alpha", "1.0", 10)
    nested.wheel("alpha", "2.0", 20)
    library = library_line(nested, 100, 101, 102, 403, 404, 405)
    first = nested.commit("training 0", bytes=700, pin=library[0], lock="alpha==1.0\n", packages=["alpha"])
    nested.commit("training 1", bytes=701, packages=["alpha"])
    bump = nested.commit(
        "Move everything",
        bytes=702,
        pin=library[5],
        lock="alpha==2.0\n",
        needs={"library": [5, 9]},  # so new source with the old library is no way
        packages=["alpha"],
    )
    report = bisect(client, first, bump)
    assert report["finding"]["commits"] == [bump]
    assert levels(report) == ["factors", "pin"], report["finding"]
    factors, pin = report["finding"]["descent"]
    assert factors["names"] == [f"vendor/library moved to {library[5][:10]}"]
    assert pin["commits"] == [library[3]]


def test_a_moved_lock_is_opened_into_its_packages_and_the_versions_between(
    client: Client, nested: Nested
) -> None:
    names = ("alpha", "beta", "delta", "gamma")
    nested.write_profile_with_lock(*names)
    for name in names:
        for version in range(1, 6):
            nested.wheel(name, f"{version}.0", 300 if name == "delta" and version >= 4 else version)
    lock = "".join(f"{name}=={{0}}.0\n" for name in names)
    first = nested.commit("training 0", bytes=750, lock=lock.format(1), packages=names)
    bump = nested.commit("Move the lock", lock=lock.format(5))
    last = nested.commit("training 2", bytes=752, packages=names)
    report = bisect(client, first, last)
    assert report["finding"]["commits"] == [bump]
    assert levels(report) == ["packages", "packages"], report["finding"]
    package, version = report["finding"]["descent"]
    assert package["names"] == ["delta 1.0 -> 5.0"]
    assert version["names"] == ["delta 3.0 -> 4.0"]


def test_a_fix_that_a_diverged_pin_lacks_is_named_as_lost(client: Client, nested: Nested) -> None:
    #  library   base - x1 - x2 (the fix) - x3       the old pin is x3, the new one y2
    #               \_ y1 - y2
    library = library_line(nested, 400, 401, 102, 103)
    nested.library.git("checkout", "-q", "-b", "release", library[0])
    release = [nested.commit(f"y{n}", scene=nested.library, bytes=400 + n) for n in (10, 11)]
    first = nested.commit("training 0", bytes=700, pin=library[3])
    bump = nested.commit("Move to the release", pin=release[1])
    report = bisect(client, first, bump)
    assert report["finding"]["commits"] == [bump]
    assert levels(report) == ["pin"], report["finding"]
    assert inner(report)["lost"] is True
    assert inner(report)["commits"] == [library[2]]


def test_a_diverged_pin_is_searched_through_the_merge_base(client: Client, nested: Nested) -> None:
    library = library_line(nested, 100, 101, 102, 103)
    nested.library.git("checkout", "-q", "-b", "release", library[1])
    release = [nested.commit(f"y{n}", scene=nested.library, bytes=100 + 10 * n) for n in (1, 2, 30, 31)]
    first = nested.commit("training 0", bytes=700, pin=library[3])
    bump = nested.commit("Move to the release", pin=release[3])
    report = bisect(client, first, bump)
    assert levels(report) == ["pin"], report["finding"]
    assert (inner(report)["lost"], inner(report)["commits"]) == (False, [release[2]])


def test_a_merge_is_opened_into_its_branch(client: Client, nested: Nested) -> None:
    training = nested.training
    base = nested.commit("training 0", bytes=700)
    training.git("checkout", "-q", "-b", "topic")
    topic = [
        training.commit(f"topic {n}", **{"extra-topic__json": str(400 if n >= 2 else n)}) for n in range(4)
    ]
    training.git("checkout", "-q", "main")
    nested.commit("training 1", bytes=701)
    training.git("merge", "-q", "--no-ff", "-m", "Merge topic", "topic")
    merge = training.head
    last = nested.commit("training 3", bytes=703)
    report = bisect(client, base, last)
    assert report["finding"]["commits"] == [merge]
    assert levels(report) == ["merge"]
    assert inner(report)["commits"] == [topic[2]]


def test_a_merge_whose_parents_both_pass_is_to_blame_itself(client: Client, nested: Nested) -> None:
    training = nested.training
    base = nested.commit("training 0", bytes=500)
    training.git("checkout", "-q", "-b", "topic")
    training.commit("topic", **{"extra-topic__json": "300"})
    training.git("checkout", "-q", "main")
    training.commit("trunk", **{"extra-trunk__json": "300"})
    training.git("merge", "-q", "--no-ff", "-m", "Merge topic", "topic")
    merge = training.head
    report = bisect(client, base, merge)
    assert report["finding"]["commits"] == [merge]
    assert levels(report) == ["merge"]
    assert inner(report)["commits"] == [merge]
    assert "Both parents of the merge pass" in inner(report)["why"]


def test_parts_that_run_only_together_are_a_joint_change(client: Client, nested: Nested) -> None:
    old = nested.commit("library old", scene=nested.library, bytes=100, number=1, needs={"training": [1, 1]})
    new = nested.commit("library new", scene=nested.library, bytes=400, number=2, needs={"training": [2, 2]})
    first = nested.commit("training 0", bytes=700, number=1, pin=old)
    bump = nested.commit("Move both", bytes=701, number=2, pin=new)
    report = bisect(client, first, bump)
    assert report["finding"]["commits"] == [bump]
    assert levels(report) == ["factors", "factors"], report["finding"]
    joint = inner(report)
    assert (joint["kind"], joint["joint"], joint["problem"]) == ("set", True, "joint-change")
    assert len(joint["names"]) == 2


@pytest.mark.parametrize("guilty", ["library", "training"])
def test_pairs_of_pins_can_be_the_ends(client: Client, nested: Nested, guilty: str) -> None:
    #  The training repository pins an old library all along; the nightly takes the newest.
    library = library_line(nested, *(400 + n if guilty == "library" and n >= 4 else n for n in range(7)))
    training = [
        nested.commit(
            f"training {n}", bytes=700 + n + (400 if guilty == "training" and n >= 3 else 0), pin=library[0]
        )
        for n in range(6)
    ]
    report = bisect(
        client,
        {"training": training[0], "library": library[1]},
        {"training": training[5], "library": library[6]},
    )
    finding = report["finding"]
    assert finding["kind"] == "found", finding
    if guilty == "library":
        assert inner(report)["commits"] == [library[4]]
        assert f"vendor/library moved to {library[6][:10]}" in report["summary"]
    else:
        assert finding["commits"] == [training[3]]
        assert levels(report) == []
    assert report["asked"]["good"] == f"library {library[1]}, training {training[0]}"


def test_a_good_end_that_fails_widens_backwards_on_request(client: Client, nested: Nested) -> None:
    training = [nested.commit(f"training {n}", bytes=(1100 if n >= 3 else 700) + n) for n in range(14)]
    report = bisect(client, training[11], training[13], widen=True)
    finding = report["finding"]
    assert (finding["kind"], finding["commits"]) == ("found", [training[3]]), finding
    assert report["subject"]["good"] in training[:3]
    assert report["subject"]["bad"] == training[13]


def test_a_budget_that_is_spent_on_the_way_down_leaves_the_culprit_standing(
    client: Client, nested: Nested
) -> None:
    library = library_line(nested, *(400 + n if n >= 20 else n for n in range(40)))
    first = nested.commit("training 0", bytes=700, pin=library[0])
    bump = nested.commit("Move the library", pin=library[39])
    report = bisect(client, first, bump, budget={"trials": 7})
    finding = report["finding"]
    assert (finding["kind"], finding["commits"]) == ("found", [bump]), finding
    assert inner(report)["problem"] == "budget-spent"
    assert library[20] in inner(report)["commits"]
    assert len(report["trials"]) <= 7
