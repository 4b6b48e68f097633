"""Pairs of pins as ends, and what a culprit carries, in a world whose every cause is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bisection.report import CulpritReport
from tests.integration.pinned_world import KERNEL, LIBRARY, PinnedWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PinnedWorld]:
    world = PinnedWorld(tmp_path)
    yield world
    world.database.close()


def levels(report: CulpritReport) -> list[str]:
    return [level.level.value for level in report.finding.descent]


def test_pairs_may_override_a_pin_inside_a_pin_alone(world: PinnedWorld) -> None:
    kernel = world.line(world.kernel, 6)
    library = world.commit(0, scene=world.library, kernel=kernel[0])
    top = world.commit(0, library=library)
    good, bad = ({"training": top, "kernel": kernel[n]} for n in (0, 5))
    report = world.bisect(good, bad, lambda parts: parts[KERNEL] >= 3)
    assert report.finding.kind == "found", report.summary
    assert kernel[3][:10] in report.summary


def test_a_pin_inside_a_pin_is_told_apart_from_the_source(world: PinnedWorld) -> None:
    kernel = world.line(world.kernel, 6)
    library = world.commit(0, scene=world.library, kernel=kernel[0])
    tops = [world.commit(n, library=library) for n in range(5)]
    good = {"training": tops[0], "kernel": kernel[0]}
    bad = {"training": tops[4], "kernel": kernel[5]}
    report = world.bisect(good, bad, lambda parts: parts[KERNEL] >= 3)
    assert report.finding.descent, report.summary
    assert report.finding.descent[-1].commits == (kernel[3],)


def test_both_a_pin_and_one_inside_it_are_switched_one_by_one(world: PinnedWorld) -> None:
    kernel = world.line(world.kernel, 6)
    libraries = [world.commit(n, scene=world.library, kernel=kernel[0]) for n in range(6)]
    top = world.commit(0, library=libraries[0])
    good = {"training": top, "library": libraries[0], "kernel": kernel[1]}
    bad = {"training": top, "library": libraries[5], "kernel": kernel[5]}
    report = world.bisect(good, bad, lambda parts: parts[LIBRARY] >= 2)
    assert report.finding.descent[-1].commits == (libraries[2],), report.summary
    report = world.bisect(good, bad, lambda parts: parts[KERNEL] >= 4, reuse=False)
    assert report.finding.descent[-1].commits == (kernel[4],), report.summary


def test_an_end_that_names_what_its_commit_does_not_pin_is_refused_with_the_repair(
    world: PinnedWorld,
) -> None:
    libraries = world.line(world.library, 2)
    before = world.commit(0)
    after = world.commit(1, library=libraries[0])
    good, bad = ({"training": top, "library": libraries[1]} for top in (before, after))
    report = world.bisect(good, bad, lambda parts: True)
    assert (report.finding.kind, report.finding.problem) == ("rejected", "bad-range")
    assert f"{before[:10]} pins nothing at vendor/library: leave 'library' out of that end" in report.summary


def test_a_relevant_path_that_no_end_has_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    world = PinnedWorld(tmp_path, relevant_paths=["trian.py"])
    tops = [world.commit(n) for n in range(3)]
    report = world.bisect(tops[0], tops[2], lambda parts: True)
    assert (report.finding.kind, report.finding.problem) == ("rejected", "missing-path")
    assert "'trian.py' under relevant_paths" in report.summary


def test_the_pins_of_a_pair_are_held_over_the_commits_between(world: PinnedWorld) -> None:
    #  The commits between pin a library that is bad by itself; neither end takes it.
    libraries = world.line(world.library, 6)
    tops = [world.commit(n, library=libraries[5 if n == 6 else 3]) for n in range(7)]
    good = {"training": tops[0], "library": libraries[0]}
    report = world.bisect(good, tops[6], lambda parts: parts[LIBRARY] == 3 or parts["training"] >= 4)
    assert report.finding.commits == (tops[4],), report.summary


def test_mixed_states_of_pairs_in_the_other_order_lead_to_the_commits(world: PinnedWorld) -> None:
    libraries = world.line(world.library, 4)
    tops = [world.commit(n, library=libraries[0]) for n in range(7)]
    good = {"training": tops[0], "library": libraries[0]}
    bad = {"training": tops[6], "library": libraries[3]}
    report = world.bisect(
        good,
        bad,
        lambda parts: parts["training"] >= 4,
        lambda parts: parts["training"] < 2 and parts[LIBRARY] > 1,
    )
    assert report.finding.commits == (tops[4],), report.summary


def test_the_commits_of_pairs_may_move_the_lock_as_well(world: PinnedWorld) -> None:
    libraries = world.line(world.library, 4)
    tops = [
        world.commit(n, library=libraries[0], files={"lock.txt": f"alpha=={n // 2}\nbeta==1\n"})
        for n in range(7)
    ]
    good = {"training": tops[0], "library": libraries[0]}
    bad = {"training": tops[6], "library": libraries[3]}
    report = world.bisect(good, bad, lambda parts: parts["training"] >= 4)
    assert report.finding.commits == (tops[4],), report.summary
    assert "diverge" not in report.summary


def test_a_fix_that_diverged_source_lacks_is_named_in_pairs_too(world: PinnedWorld) -> None:
    libraries = world.line(world.library, 2)
    base = world.commit(0, library=libraries[0])
    old = [world.commit(n, library=libraries[0]) for n in (10, 11, 12)]
    world.scene.git("checkout", "-q", "-b", "release", base)
    new = [world.commit(n, library=libraries[0]) for n in (1, 2)]
    good = {"training": old[2], "library": libraries[0]}
    bad = {"training": new[1], "library": libraries[0]}
    report = world.bisect(good, bad, lambda parts: parts["training"] < 11)
    assert old[1][:10] in report.summary, report.summary
    assert "losing a fix" in report.summary


def test_a_fix_that_a_diverged_pin_lacks_is_named_in_pairs_too(world: PinnedWorld) -> None:
    base = world.commit(0, scene=world.library)
    old = [world.commit(n, scene=world.library) for n in (10, 11, 12)]
    world.library.git("checkout", "-q", "-b", "release", base)
    new = [world.commit(n, scene=world.library) for n in (1, 2)]
    top = world.commit(0, library=base)
    good, bad = ({"training": top, "library": pin} for pin in (old[2], new[1]))
    report = world.bisect(good, bad, lambda parts: parts[LIBRARY] < 11)
    assert old[1][:10] in report.summary, report.summary
    assert "losing a fix" in report.summary


def test_a_fix_that_a_merge_loses_is_named_and_not_where_its_branch_left(world: PinnedWorld) -> None:
    #  base (failing) - fix - trunk - merge, and from base: side. The merge takes the branch's n.py.
    base = world.commit(0)
    fix = world.commit(10)
    trunk = world.commit(11)
    world.scene.git("checkout", "-q", "-b", "side", base)
    world.commit(subject="side", files={"side.py": "1"})
    world.scene.git("checkout", "-q", "main")
    world.scene.git("merge", "-q", "--no-ff", "--no-commit", "side")
    world.scene.git("checkout", "side", "--", "n.py")
    merge = world.scene.commit_index("Merge side")
    last = world.commit(subject="later", files={"later.py": "1"})
    report = world.bisect(trunk, last, lambda parts: parts["training"] < 10)
    assert report.finding.commits == (merge,)
    assert levels(report) == ["merge", "commits"], report.summary
    assert report.finding.descent[-1].commits == (fix,)
    assert f", by losing a fix in the source: {fix[:10]}" in report.summary
    assert base[:10] not in report.summary


@pytest.mark.parametrize("carried", ["pin", "lock", "both"])
def test_what_seems_to_be_no_code_is_not_blamed_on_a_pin_or_a_lock(world: PinnedWorld, carried: str) -> None:
    kept = {"lock.txt": "alpha==1\nbeta==1\n", "tests/job.py": "0"}
    libraries = world.line(world.library, 6)
    first = world.commit(0, library=libraries[0], files=kept)
    files = {"tests/job.py": "1"}
    files |= {"lock.txt": "alpha==2\nbeta==2\n"} if carried != "pin" else {}
    last = world.commit(files=files, subject="Bump", library=libraries[0 if carried == "lock" else 5])
    report = world.bisect(first, last, lambda parts: parts["tests/job.py"] == 1)
    assert report.finding.commits == (last,), report.summary
    assert not [level for level in report.finding.descent if level.kind == "found"], report.summary
