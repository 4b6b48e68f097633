"""Lines through real histories: from any commit to any other, along a merge, further back."""

from __future__ import annotations

from pathlib import Path

import pytest

from bisection.adapters.mirror import BadRange, Mirror
from tests.repository_scene import RepositoryScene


class Forked:
    """base - a1 - a2 - merge - a4, and from base: b1 - b2 (merged); and c1 - c2, which stays apart."""

    def __init__(self, folder: Path) -> None:
        self.scene = scene = RepositoryScene(folder / "work")
        self.base = scene.commit("base", file__py="0")
        scene.git("checkout", "-q", "-b", "b")
        self.b1 = scene.commit("b1", b__py="1")
        self.b2 = scene.commit("b2", b__py="2")
        scene.git("checkout", "-q", "-b", "c", self.base)
        self.c1 = scene.commit("c1", c__py="1")
        self.c2 = scene.commit("c2", c__py="2")
        scene.git("checkout", "-q", "main")
        self.a1 = scene.commit("a1", a__py="1")
        self.a2 = scene.commit("a2", a__py="2")
        scene.git("merge", "-q", "--no-ff", "-m", "merge", "b")
        self.merge = scene.head
        self.a4 = scene.commit("a4", a__py="4")
        self.mirror = Mirror(folder / "mirror.git", scene.url)
        self.mirror.fetch()

    def path(self, start: str, end: str) -> tuple[list[str], int]:
        found, turn = self.mirror.read_path(start, end)
        return [commit.hash for commit in found.commits], turn


@pytest.fixture
def forked(tmp_path: Path) -> Forked:
    return Forked(tmp_path)


def test_from_an_ancestor_the_path_is_the_first_parent_line(forked: Forked) -> None:
    assert forked.path(forked.base, forked.a4) == (
        [forked.base, forked.a1, forked.a2, forked.merge, forked.a4],
        0,
    )


def test_backwards_every_step_takes_a_commit_away(forked: Forked) -> None:
    steps, turn = forked.path(forked.a2, forked.base)
    assert (steps, turn) == ([forked.a2, forked.a1, forked.base], 2)
    found, _ = forked.mirror.read_path(forked.a2, forked.base)
    # The step to a1 takes a2 away, so it touches what a2 touched.
    assert [commit.paths for commit in found.commits[1:]] == [("a.py",), ("a.py",)]


def test_between_branches_the_path_leads_through_where_they_part(forked: Forked) -> None:
    steps, turn = forked.path(forked.c2, forked.a2)
    assert (steps, turn) == ([forked.c2, forked.c1, forked.base, forked.a1, forked.a2], 2)


def test_from_a_merged_branch_the_path_goes_on_with_the_merge(forked: Forked) -> None:
    assert forked.path(forked.b1, forked.a4) == ([forked.b1, forked.merge, forked.a4], 0)


def test_where_a_branch_took_in_the_trunk_the_path_leads_through_what_it_took(forked: Forked) -> None:
    #  base - a1 - a2 - merge - a4        c takes in a2 and goes on: c1 - c2 - joined - c4
    scene = forked.scene
    scene.git("checkout", "-q", "c")
    scene.git("merge", "-q", "--no-ff", "-m", "take in the trunk", forked.a2)
    joined = scene.head
    c4 = scene.commit("c4", c__py="4")
    forked.mirror.fetch()
    assert forked.path(c4, forked.a4) == ([c4, joined, forked.a2, forked.merge, forked.a4], 2)
    assert forked.path(forked.a4, c4) == ([forked.a4, forked.merge, forked.a2, joined, c4], 2)
    # Against the trunk the merge brings what the branch had before.
    found = forked.mirror.read_merge(joined, forked.a2)
    assert [commit.hash for commit in found.commits] == [
        forked.a2, forked.base, forked.c1, forked.c2, joined,
    ]  # fmt: skip


def test_commits_without_a_common_history_have_no_path(forked: Forked) -> None:
    forked.scene.git("checkout", "-q", "--orphan", "apart")
    apart = forked.scene.commit("apart", d__py="1")
    forked.mirror.fetch()
    with pytest.raises(BadRange, match="no common history"):
        forked.path(apart, forked.a4)
    with pytest.raises(BadRange, match="nothing between"):
        forked.path(forked.a4, forked.a4)


def test_a_merge_is_its_first_parent_the_fork_the_branch_and_itself(forked: Forked) -> None:
    found = forked.mirror.read_merge(forked.merge, forked.a2)
    assert [commit.hash for commit in found.commits] == [
        forked.a2, forked.base, forked.b1, forked.b2, forked.merge,
    ]  # fmt: skip
    assert found.bad.parents == (forked.a2, forked.b2)


def test_a_merge_of_a_branch_that_left_at_its_first_parent_has_no_fork_of_its_own(forked: Forked) -> None:
    scene = forked.scene
    scene.git("checkout", "-q", "-b", "topic", "main")
    topic = scene.commit("topic", t__py="1")
    scene.git("checkout", "-q", "main")
    scene.git("merge", "-q", "--no-ff", "-m", "merge topic", "topic")
    forked.mirror.fetch()
    found = forked.mirror.read_merge(scene.head, forked.a4)
    assert [commit.hash for commit in found.commits] == [forked.a4, topic, scene.head]


def test_going_back_stops_where_history_begins(forked: Forked) -> None:
    assert [c.hash for c in forked.mirror.read_back(forked.a2, 1)] == [forked.a1, forked.a2]
    assert [c.hash for c in forked.mirror.read_back(forked.a2, 99)] == [forked.base, forked.a1, forked.a2]


def test_gitlinks_are_told_from_files(forked: Forked) -> None:
    forked.scene.pin("vendor/x", forked.c1)
    pinned = forked.scene.commit_index("pin")
    forked.mirror.fetch()
    assert forked.mirror.gitlinks(pinned, ["vendor/x", "a.py", "nowhere"]) == {"vendor/x": forked.c1}
    assert forked.mirror.gitlinks(pinned, []) == {}
