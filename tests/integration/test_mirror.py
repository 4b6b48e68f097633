"""The mirror against real git repositories: names, ranges, keys, content, reverts, hostile trees."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bisection.adapters.git_process import git_version, run_git
from bisection.adapters.mirror import (
    AmbiguousRef,
    BadRange,
    DamagedMirror,
    FileChange,
    Mirror,
    MirrorError,
    MissingPath,
    UnknownRef,
    Unreachable,
)
from bisection.adapters.reverting import Revert, apply_reverse, merge_tree
from bisection.adapters.tree_export import UnsafeTreeError
from tests.repository_scene import RepositoryScene


@pytest.fixture
def scene(tmp_path: Path) -> RepositoryScene:
    return RepositoryScene(tmp_path / "origin")


def mirrored(scene: RepositoryScene, tmp_path: Path) -> Mirror:
    mirror = Mirror(tmp_path / "mirrors" / "nightly.git", scene.url)
    mirror.fetch()
    return mirror


# -- names ------------------------------------------------------------------------


def test_a_branch_a_tag_a_short_hash_and_head_resolve_to_the_commit(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    first = scene.commit("first", a="1")
    second = scene.commit("second", a="2")
    scene.git("tag", "-a", "v1", "-m", "annotated", first)
    mirror = mirrored(scene, tmp_path)
    assert mirror.resolve("main") == second
    assert mirror.resolve("v1") == first
    assert mirror.resolve(first[:12]) == first
    assert mirror.resolve("HEAD~1") == first


def test_an_unknown_ref_is_answered_with_near_names(scene: RepositoryScene, tmp_path: Path) -> None:
    scene.commit("first", a="1")
    scene.git("tag", "nightly-2026-01-02")
    with pytest.raises(UnknownRef, match="near names: nightly-2026-01-02"):
        mirrored(scene, tmp_path).resolve("nightly-2026-01-03")


def test_a_tag_and_a_branch_of_one_name_are_told_apart_and_not_chosen_between(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    first = scene.commit("first", a="1")
    second = scene.commit("second", a="2")
    last = scene.commit("last", a="3")
    scene.git("tag", "-a", "-m", "annotated", "main", second)
    scene.git("branch", "ci/nightly", first)
    scene.git("branch", "refs/heads/main", first)
    scene.git("tag", "nightly", last)
    scene.git("branch", "nightly", last)
    mirror = mirrored(scene, tmp_path)
    with pytest.raises(AmbiguousRef) as caught:
        mirror.resolve("main")
    assert f"refs/heads/main is {last[:10]}; refs/tags/main is {second[:10]}" in str(caught.value)
    with pytest.raises(AmbiguousRef, match=f"refs/heads/main is {second[:10]}"):
        mirror.resolve("main~1")
    assert mirror.resolve("refs/heads/main") == last
    assert mirror.resolve("refs/tags/main^{}") == second
    assert mirror.resolve("heads/main~1") == second
    assert mirror.resolve("ci/nightly") == first
    assert mirror.resolve("nightly") == last, "both are the same commit"
    assert mirror.resolve("HEAD") == last


def test_a_name_that_looks_like_another_commits_hash_does_not_hide_it(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    first = scene.commit("first", a="1")
    second = scene.commit("second", a="2")
    scene.git("tag", second[:8], first)
    scene.git("branch", first[:9], first)
    scene.git("tag", "facade1", second)
    scene.git("tag", "2024", second)
    mirror = mirrored(scene, tmp_path)
    with pytest.raises(AmbiguousRef, match=f"refs/tags/{second[:8]} is {first[:10]}; {second} is"):
        mirror.resolve(second[:8])
    assert mirror.resolve(second[:9]) == second
    assert mirror.resolve(second.upper()) == second
    assert mirror.resolve(first[:9]) == first
    assert mirror.resolve("facade1") == mirror.resolve("2024") == second


@pytest.mark.parametrize(
    "word",
    ["--git-dir", "--output=x", "^main", "main..main", "", "a\nb", "x" * 300, "main:a", "-n1", "main^{tree}"],
)
def test_a_word_that_is_no_commit_never_becomes_an_option(
    scene: RepositoryScene, tmp_path: Path, word: str
) -> None:
    scene.commit("first", a="1")
    mirror = mirrored(scene, tmp_path)
    with pytest.raises(UnknownRef):
        mirror.resolve(word)
    assert not (mirror.folder / "x").exists()


def test_a_fetch_follows_pushes_forced_pushes_and_deleted_branches(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    scene.commit("first", a="1")
    scene.git("branch", "topic")
    mirror = mirrored(scene, tmp_path)
    before = scene.commit("second", a="2")
    scene.git("branch", "-D", "topic")
    scene.git("branch", "topic/deeper")
    mirror.fetch()
    assert mirror.resolve("main") == before
    with pytest.raises(UnknownRef):
        mirror.resolve("topic")
    scene.git("reset", "-q", "--hard", "HEAD~1")
    after = scene.commit("other", a="3")
    mirror.fetch()
    assert mirror.resolve("main") == after
    assert mirror.has(before), "a commit that a forced push dropped must stay bisectable"


def test_a_lock_file_of_a_killed_git_does_not_stop_the_next_fetch(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    scene.commit("first", a="1")
    mirror = mirrored(scene, tmp_path)
    (mirror.folder / "packed-refs.lock").touch()
    (mirror.folder / "refs" / "heads" / "main.lock").touch()
    second = scene.commit("second", a="2")
    mirror.fetch()
    assert mirror.resolve("main") == second


def test_many_fetches_at_once_do_not_disturb_each_other(scene: RepositoryScene, tmp_path: Path) -> None:
    head = scene.commit("first", a="1")
    mirror = Mirror(tmp_path / "m.git", scene.url)
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            Mirror(tmp_path / "m.git", scene.url).fetch()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert mirror.resolve("main") == head


def test_hooks_and_the_users_configuration_do_not_run(
    scene: RepositoryScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.commit("first", a="1")
    mirror = mirrored(scene, tmp_path)
    ran = tmp_path / "ran"
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("reference-transaction", "post-checkout", "pre-receive", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (hooks / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f'[core]\n\thooksPath = {hooks}\n[url "ext::sh"]\n\tinsteadOf = file\n')
    (mirror.folder / "hooks").mkdir(exist_ok=True)
    (mirror.folder / "hooks" / "reference-transaction").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (mirror.folder / "hooks" / "reference-transaction").chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    scene.commit("second", a="2")
    mirror.fetch()
    assert mirror.read_file(mirror.resolve("main"), "a") == b"2"
    assert not ran.exists()


@pytest.mark.parametrize("url", ["ext::sh -c true", "file:///nowhere/at/all", "--upload-pack=touch x"])
def test_a_repository_that_cannot_be_reached_says_whom_to_ask(tmp_path: Path, url: str) -> None:
    with pytest.raises(Unreachable, match="check the repository's url"):
        Mirror(tmp_path / "m.git", url).fetch()


def test_a_commit_that_no_branch_has_is_fetched_by_its_hash(scene: RepositoryScene, tmp_path: Path) -> None:
    scene.commit("first", a="1")
    scene.git("config", "uploadpack.allowAnySHA1InWant", "true")
    mirror = mirrored(scene, tmp_path)
    lost = scene.commit("on no branch", a="2")
    scene.git("reset", "-q", "--hard", "HEAD~1")
    mirror.require(lost)
    assert mirror.read_file(lost, "a") == b"2"
    with pytest.raises(UnknownRef, match="not even when asked for by its hash"):
        mirror.require("f" * 40)


def test_a_commit_of_a_pull_request_is_fetched_from_a_server_that_gives_no_hashes(
    scene: RepositoryScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An ssh that forgets to pass the protocol on, as old servers do: they give what a ref names, and no more.
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(
        '#!/bin/sh\nunset GIT_PROTOCOL\nfor command; do :; done\nexec sh -c "$command"\n'
    )
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    scene.commit("first", a="1")
    mirror = Mirror(tmp_path / "m.git", f"ssh://host{scene.folder}")
    mirror.fetch()
    inside = scene.commit("in a pull request", a="2")
    head = scene.commit("its head", a="3")
    scene.git("update-ref", "refs/pull/7/head", head)
    scene.git("reset", "-q", "--hard", "HEAD~2")
    mirror.require(inside)
    assert mirror.read_file(inside, "a") == b"2"
    with pytest.raises(UnknownRef, match="nor as the head of a pull request"):
        mirror.require("f" * 40)


def test_a_mirror_that_was_not_fetched_says_so(tmp_path: Path) -> None:
    with pytest.raises(MirrorError, match="it was not fetched yet"):
        Mirror(tmp_path / "m.git", "file:///x").resolve("main")


# -- damage -----------------------------------------------------------------------


def damage(mirror: Mirror, how: str) -> None:
    """Breaks files of the mirror as a failing or a full disk does."""
    objects = mirror.folder / "objects"
    if how == "packs":
        run_git(mirror.folder, "repack", "-adq")
    for path in [path for path in objects.rglob("*") if path.is_file()]:
        path.chmod(0o644)
        path.write_bytes(b"" if how == "empty objects" else b"junk")
        if how == "one object" and path.parent.name != "info":
            return
    if how == "HEAD":
        (mirror.folder / "HEAD").write_text("junk")
    if how == "a ref":
        (mirror.folder / "refs" / "heads" / "main").write_text("junk")


KINDS_OF_DAMAGE = ["objects", "empty objects", "packs", "HEAD", "a ref"]


@pytest.mark.parametrize("how", KINDS_OF_DAMAGE)
def test_a_damaged_mirror_is_made_anew_by_the_next_fetch_or_read(
    scene: RepositoryScene, tmp_path: Path, how: str
) -> None:
    first = scene.commit("first", a="1")
    last = scene.commit("last", a="2")
    mirror = mirrored(scene, tmp_path)
    reads: list[Callable[[], object]] = [
        mirror.fetch,
        lambda: mirror.require(last),
        lambda: mirror.read_range(first, last, ["a"]),
        lambda: mirror.read_file(last, "a"),
        lambda: mirror.tree(last),
        lambda: mirror.diff_summary(first, last),
        lambda: mirror.revert(last, last),
    ]
    for read in reads:
        damage(mirror, how)
        read()
        mirror.fetch()
        assert mirror.resolve("main") == last
        assert mirror.read_file(last, "a") == b"2"
    names = {path.name for path in mirror.folder.parent.iterdir()}
    assert names == {"nightly.git", "nightly.git.lock", ".damaged-nightly.git"}


def test_one_missing_file_is_damage_and_no_other_state(scene: RepositoryScene, tmp_path: Path) -> None:
    first = scene.commit("first", a="1")
    last = scene.commit("last", a="2")
    mirror = mirrored(scene, tmp_path)
    whole = mirror.read_range(first, last, ["a"])
    blob = scene.git("rev-parse", f"{last}:a")
    for read in (lambda: mirror.read_range(first, last, ["a"]), lambda: mirror.tree(last)):
        (mirror.folder / "objects" / blob[:2] / blob[2:]).unlink()
        read()
        assert mirror.read_range(first, last, ["a"]) == whole


def test_what_only_the_damaged_mirror_had_is_saved_where_it_can_be_read(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    first = scene.commit("first", a="1")
    last = scene.commit("last", a="2", b="1")
    mirror = mirrored(scene, tmp_path)
    revert = mirror.commit_tree(scene.git("rev-parse", f"{first}^{{tree}}"), last, "Revert")
    blob = scene.git("rev-parse", f"{last}:a")
    broken = mirror.folder / "objects" / blob[:2] / blob[2:]
    broken.chmod(0o644)
    broken.write_bytes(b"junk")
    assert len(mirror.tree(last)) == 2
    assert (mirror.folder.parent / ".damaged-nightly.git").is_dir()
    assert mirror.read_file(last, "a") == b"2"
    assert mirror.read_file(revert, "a") == b"1"


@pytest.mark.parametrize("how", KINDS_OF_DAMAGE)
def test_a_damaged_mirror_that_cannot_be_made_anew_names_its_folder_and_its_host(
    scene: RepositoryScene, tmp_path: Path, how: str
) -> None:
    commit = scene.commit("first", a="1")
    mirror = mirrored(scene, tmp_path)
    damage(mirror, how)
    scene.folder.rename(tmp_path / "away")
    with pytest.raises(DamagedMirror) as caught:
        mirror.read_file(commit, "a") if how != "a ref" else mirror.resolve("main")
    assert f"delete the folder {mirror.folder}" in str(caught.value)
    assert "The host is to blame" in str(caught.value)
    (tmp_path / "away").rename(scene.folder)
    assert mirror.read_file(commit, "a") == b"1", "it heals as soon as it can"


def test_a_commit_that_was_never_here_is_no_damage(scene: RepositoryScene, tmp_path: Path) -> None:
    commit = scene.commit("first", a="1")
    mirror = mirrored(scene, tmp_path)
    absent = "1" * 40
    reads: list[Callable[[], object]] = [
        lambda: mirror.require(absent),
        lambda: mirror.resolve(absent),
        lambda: mirror.resolve(absent[:8]),
        lambda: mirror.read_range(commit, absent),
        lambda: mirror.read_range(absent, commit),
        lambda: mirror.read_file(absent, "a"),
        lambda: mirror.tree(absent),
        lambda: mirror.diff_summary(absent, commit),
        lambda: mirror.revert(absent, commit),
    ]
    for read in reads:
        with pytest.raises(MirrorError) as caught:
            read()
        assert not isinstance(caught.value, DamagedMirror)
        assert not (mirror.folder.parent / ".damaged-nightly.git").exists()


@pytest.mark.parametrize("kind", ["commit", "tree"])
def test_a_commit_or_a_folder_that_is_gone_inside_the_range_is_damage(
    scene: RepositoryScene, tmp_path: Path, kind: str
) -> None:
    first = scene.commit("first", a___b="1")
    middle = scene.commit("middle", a___b="2")
    last = scene.commit("last", c="3")
    mirror = mirrored(scene, tmp_path)
    whole = mirror.read_range(first, last, ["a"])
    gone = middle if kind == "commit" else scene.git("rev-parse", f"{last}:a")
    (mirror.folder / "objects" / gone[:2] / gone[2:]).unlink()
    assert mirror.read_range(first, last, ["a"]) == whole
    assert (mirror.folder.parent / ".damaged-nightly.git").exists()


def test_a_repository_that_is_itself_damaged_is_not_blamed_on_the_mirror(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    commit = scene.commit("first", a="1")
    mirror = mirrored(scene, tmp_path)
    scene.commit("second", a="2")
    blob = scene.git("rev-parse", "HEAD:a")
    (scene.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(Unreachable):
        mirror.fetch()
    assert mirror.read_file(commit, "a") == b"1", "the mirror as it was stays"


def test_readers_at_once_make_a_damaged_mirror_anew_once(scene: RepositoryScene, tmp_path: Path) -> None:
    first = scene.commit("first", a="1")
    last = scene.commit("last", a="2")
    mirror = mirrored(scene, tmp_path)
    damage(mirror, "objects")
    damaged = mirror.folder.stat().st_ino
    failures: list[BaseException] = []

    def read() -> None:
        try:
            mirror.read_range(first, last)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert (mirror.folder.parent / ".damaged-nightly.git").stat().st_ino == damaged


# -- ranges -----------------------------------------------------------------------


def test_a_range_is_the_first_parent_line_oldest_first_with_both_ends(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    #  first -- second -- merge -- fourth
    #       \-- side ----/
    first = scene.commit(":first\tof all", a="1")
    second = scene.commit("second", b="1")
    scene.git("checkout", "-q", "-b", "side", first)
    side = scene.commit("side", c="1")
    scene.git("checkout", "-q", "main")
    scene.git("merge", "-q", "--no-ff", "-m", "merge side", "side")
    merge = scene.head
    fourth = scene.commit("", a="2")
    found = mirrored(scene, tmp_path).read_range(first, fourth)
    assert [commit.hash for commit in found.commits] == [first, second, merge, fourth]
    assert found.commits[2].parents == (second, side)
    assert [commit.paths for commit in found.commits] == [("a",), ("b",), ("c",), ("a",)]
    assert [commit.subject for commit in found.commits] == [":first\tof all", "second", "merge side", ""]
    assert found.commits[0].author == "Ada"
    assert found.commits[0].committed_at == "2023-11-14T22:16:20+00:00"


def test_commits_that_cannot_change_the_repro_have_one_key(scene: RepositoryScene, tmp_path: Path) -> None:
    def keys(position: int) -> tuple[str, str]:
        return found.commits[position].tree_key, found.commits[position].environment_key

    base = scene.commit("base", train__py="1", recipes___a__py="1", docs="1", requirements__lock="x==1")
    scene.commit("docs only", docs="2")
    scene.commit("a recipe", recipes___a__py="2")
    scene.commit("the recipe undone", recipes___a__py="1")
    scene.commit("the lock", requirements__lock="x==2")
    scene.pin("core", "1" * 40)
    last = scene.commit_index("a pin")
    found = mirrored(scene, tmp_path).read_range(base, last, ["train.py", "recipes/"], ["requirements.lock"])
    assert keys(0) == keys(1) == keys(3)
    assert keys(2)[0] != keys(0)[0]
    assert keys(2)[1] == keys(0)[1]
    assert keys(4)[0] not in {keys(0)[0], keys(2)[0]}
    assert keys(4)[1] != keys(0)[1]
    assert keys(5)[0] != keys(4)[0]
    assert keys(5)[1] == keys(4)[1]
    whole = mirrored(scene, tmp_path).read_range(base, last)
    assert whole.commits[0].tree_key != whole.commits[1].tree_key
    assert whole.commits[0].tree_key == whole.commits[0].tree_key


def test_a_mode_alone_makes_another_state_and_its_return_the_first_again(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    scene.write("run.sh", "train.py", executable=True)
    base = scene.commit("base", train__py="1", requirements__lock="train.py")
    (scene.folder / "run.sh").chmod(0o644)
    scene.commit("chmod", docs="1")
    for name in ("run.sh", "requirements.lock"):
        (scene.folder / name).unlink()
        os.symlink("train.py", scene.folder / name)
        scene.commit("a link whose target is what the file said")
    for name in ("run.sh", "requirements.lock"):
        (scene.folder / name).unlink()
    scene.write("run.sh", "train.py", executable=True)
    scene.commit("files again", requirements__lock="train.py")
    (scene.folder / "run.sh").unlink()
    scene.commit("a folder", run__sh___x="1")
    (scene.folder / "run.sh" / "x").unlink()
    (scene.folder / "run.sh").rmdir()
    scene.write("run.sh", "train.py", executable=True)
    last = scene.commit("a file once more")
    found = mirrored(scene, tmp_path).read_range(base, last, ["run.sh"], ["requirements.lock"]).commits
    trees = [commit.tree_key for commit in found]
    assert len(set(trees)) == 5
    assert trees[0] == trees[4] == trees[6]
    locks = [commit.environment_key for commit in found]
    assert locks[0] == locks[1] == locks[2] == locks[4] == locks[5]
    assert locks[3] != locks[0]


def commit_bytes(scene: RepositoryScene, ident: bytes, more: bytes, message: bytes) -> str:
    """A commit on top of main with the given committer, further headers and message, byte for byte."""
    tree, parent = scene.git("rev-parse", "HEAD^{tree}").encode(), scene.head.encode()
    content = b"tree %b\nparent %b\nauthor %b\ncommitter %b\n%b\n%b" % (
        tree, parent, ident, ident, more, message,
    )  # fmt: skip
    commit = scene.git("hash-object", "-t", "commit", "-w", "--literally", "--stdin", stdin=content)
    scene.git("update-ref", "refs/heads/main", commit)
    return commit


DATED = b"A <a@b> 1700000000 +0000"


@pytest.mark.parametrize(
    ("ident", "more", "message", "committed_at", "subject"),
    [
        (b"A <a@b>", b"", b"x\n", "", "x"),
        (b"A <a@b> -5000 +0000", b"", b"x\n", "", "x"),
        (b"A <a@b> 99999999999999 +0000", b"", b"x\n", "", "x"),
        (b"A <a@b> 999999999999 +0000", b"", b"x\n", "", "x"),
        (b"A <a@b> 99999999999999999999999 +0000", b"", b"x\n", "", "x"),
        (b"A <a@b> 1700000000 +9999999", b"", b"x\n", "2023-11-14T22:13:20+00:00", "x"),
        (DATED, b"encoding ISO-8859-1\n", b"\xe9t\xe9\n", "2023-11-14T22:13:20+00:00", "été"),
        (DATED, b"encoding NONSENSE\n", b"\xe9t\xe9\n", "2023-11-14T22:13:20+00:00", "\ufffdt\ufffd"),
        (DATED, b"encoding UTF-16\n", b"a b c\n", "2023-11-14T22:13:20+00:00", "a b c"),
        (DATED, b"encoding hex\n", b"a b c\n", "2023-11-14T22:13:20+00:00", "a b c"),
        (DATED, b"encoding utf-7\n", b"+2AA-\n", "2023-11-14T22:13:20+00:00", "?"),
        (DATED, b"", b"\n \none\ntwo\n\nbody\n", "2023-11-14T22:13:20+00:00", "one two"),
        (DATED, b"", b"\xff\0x\n", "2023-11-14T22:13:20+00:00", "\ufffd\ufffdx"),
    ],
)
def test_a_commit_that_only_git_can_read_does_not_spoil_its_range(
    scene: RepositoryScene,
    tmp_path: Path,
    ident: bytes,
    more: bytes,
    message: bytes,
    committed_at: str,
    subject: str,
) -> None:
    base = scene.commit("base", a="1")
    odd = commit_bytes(scene, ident, more, message)
    middle = scene.commit("middle", a="2")
    last = commit_bytes(scene, ident, more, message)
    mirror = mirrored(scene, tmp_path)
    found = mirror.read_range(base, last).commits
    assert [commit.hash for commit in found] == [base, odd, middle, last]
    for commit in (found[1], found[3]):
        assert (commit.author, commit.committed_at, commit.subject) == ("A", committed_at, subject)
    assert found[2].subject == "middle"
    assert found[2].paths == ("a",)
    assert len(mirror.read_range(odd, last).commits) == 3
    assert mirror.read_file(odd, "a") == b"1"


def test_pins_are_followed_through_the_range(scene: RepositoryScene, tmp_path: Path) -> None:
    scene.commit("base", a="1")
    scene.pin("vendor/core", "1" * 40)
    first = scene.commit_index("pin")
    scene.pin("vendor/core", "2" * 40)
    scene.commit_index("bump")
    scene.write("b", "1")
    scene.git("add", "b")
    scene.commit_index("unrelated")
    scene.git("rm", "-q", "--cached", "vendor/core")
    last = scene.commit_index("unpin")
    found = mirrored(scene, tmp_path).read_range(first, last)
    assert [dict(commit.pins) for commit in found.commits] == [
        {"vendor/core": "1" * 40},
        {"vendor/core": "2" * 40},
        {"vendor/core": "2" * 40},
        {},
    ]


def test_the_same_commit_twice_is_refused(scene: RepositoryScene, tmp_path: Path) -> None:
    first = scene.commit("first", a="1")
    with pytest.raises(BadRange, match="same commit"):
        mirrored(scene, tmp_path).read_range(first, first)


def test_good_after_bad_is_refused_and_told_to_swap(scene: RepositoryScene, tmp_path: Path) -> None:
    first, second = scene.commit("first", a="1"), scene.commit("second", a="2")
    with pytest.raises(BadRange, match="swap them"):
        mirrored(scene, tmp_path).read_range(second, first)


def test_ends_on_two_branches_are_refused_with_their_merge_base(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    base = scene.commit("base", a="1")
    left = scene.commit("left", a="2")
    scene.git("checkout", "-q", "-b", "right", base)
    right = scene.commit("right", a="3")
    with pytest.raises(BadRange, match=f"two branches since {base[:10]}"):
        mirrored(scene, tmp_path).read_range(left, right)


def test_a_good_end_that_came_in_by_a_merge_is_refused_with_the_merge(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    base = scene.commit("base", a="1")
    scene.git("checkout", "-q", "-b", "side")
    side = scene.commit("side", b="1")
    scene.git("checkout", "-q", "main")
    scene.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = scene.head
    last = scene.commit("last", a="2")
    with pytest.raises(BadRange, match=f"merge {merge[:10]}.*{base[:10]}"):
        mirrored(scene, tmp_path).read_range(side, last)


def test_a_long_range_takes_a_handful_of_processes(
    scene: RepositoryScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ["blob\nmark :1\ndata 1\na\n", "blob\nmark :2\ndata 1\nb\n"]
    for number in range(500):
        stream.append(
            f"commit refs/heads/main\ncommitter Ada <a@example.org> {1_700_000_000 + number} +0000\n"
            f"data 1\nx\nM 100644 :{1 + number % 2} train.py\n"
        )
    scene.git("fast-import", "--quiet", stdin="".join(stream).encode())
    mirror = mirrored(scene, tmp_path)
    good = mirror.resolve("main~499")
    started: list[object] = []
    real = subprocess.Popen

    class Counted(real):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: object, **named: object) -> None:
            started.append(arguments)
            super().__init__(*arguments, **named)

    monkeypatch.setattr(subprocess, "Popen", Counted)
    found = mirror.read_range(good, mirror.resolve("main"), ["train.py"])
    assert len(found.commits) == 500
    assert len({commit.tree_key for commit in found.commits}) == 2
    assert len(started) < 12


# -- content ----------------------------------------------------------------------


def test_an_export_is_the_blobs_with_their_modes_and_links(scene: RepositoryScene, tmp_path: Path) -> None:
    scene.write("bin/run", "#!/bin/sh\n", executable=True)
    scene.write("text", b"line\r\nline\n")
    scene.write(".gitattributes", "text eol=crlf export-ignore\n")
    os.symlink("bin/run", scene.folder / "shortcut")
    commit = scene.commit("first", deep___deeper___file="x")
    target = tmp_path / "out"
    target.mkdir()
    mirrored(scene, tmp_path).export(commit, [], target)
    assert (target / "text").read_bytes() == scene.git("cat-file", "blob", "HEAD:text").encode() + b"\n"
    assert os.access(target / "bin" / "run", os.X_OK)
    assert not os.access(target / "text", os.X_OK)
    assert os.readlink(target / "shortcut") == "bin/run"
    assert (target / "deep" / "deeper" / "file").read_text() == "x"


def test_only_the_paths_asked_for_are_exported(scene: RepositoryScene, tmp_path: Path) -> None:
    commit = scene.commit("first", a="1", b___c="2", d="3")
    target = tmp_path / "out"
    target.mkdir()
    mirrored(scene, tmp_path).export(commit, ["b", "d"], target)
    assert sorted(path.name for path in target.iterdir()) == ["b", "d"]


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../outside", "inside/../../outside", "deep/back/../etc"]
)
def test_a_link_out_of_the_tree_is_refused(scene: RepositoryScene, tmp_path: Path, target: str) -> None:
    scene.write("deep/deeper/file", "x")
    os.symlink("..", scene.folder / "deep" / "back")
    os.symlink(target, scene.folder / "link")
    commit = scene.commit("hostile")
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnsafeTreeError, match="leads outside"):
        mirrored(scene, tmp_path).export(commit, [], out)


@pytest.mark.parametrize("name", [b"..", b".git", b".GIT", b"a\nb", b"\xff\xfe", b"."])
def test_an_odd_name_is_refused_before_anything_is_written(
    scene: RepositoryScene, tmp_path: Path, name: bytes
) -> None:
    scene.commit("first", a="1")
    entry = b"100644 " + name + b"\0" + bytes.fromhex(scene.blob(b"x"))
    commit = scene.commit_raw_tree("hostile", entry)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnsafeTreeError):
        mirrored(scene, tmp_path).export(commit, [], out)
    assert not list(out.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "mirrors") == ["origin", "out"]


def test_a_name_that_is_a_link_and_a_folder_cannot_redirect_a_write(
    scene: RepositoryScene, tmp_path: Path
) -> None:
    scene.commit("first", a="1")
    outside = tmp_path / "outside"
    outside.mkdir()
    file = bytes.fromhex(scene.blob(b"payload"))
    link = bytes.fromhex(scene.blob(str(outside).encode()))
    folder = scene.git(
        "hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=b"100644 f\0" + file
    )
    tree = b"120000 d\0" + link + b"40000 d\0" + bytes.fromhex(folder)
    commit = scene.commit_raw_tree("hostile", tree)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(UnsafeTreeError):
        mirrored(scene, tmp_path).export(commit, [], out)
    assert not list(outside.iterdir())


def test_a_file_is_read_and_what_is_none_is_missing(scene: RepositoryScene, tmp_path: Path) -> None:
    os.symlink("a", scene.folder / "link")
    commit = scene.commit("first", a="1", b___c="2")
    mirror = mirrored(scene, tmp_path)
    assert mirror.read_file(commit, "b/c") == b"2"
    for path in ("nowhere", "b", "link", "a/b"):
        with pytest.raises(MissingPath, match=path):
            mirror.read_file(commit, path)


def test_a_diff_is_summed_up_by_file(scene: RepositoryScene, tmp_path: Path) -> None:
    first = scene.commit("first", a="1\n2\n", odd="x\n")
    scene.write("blob", b"\0\1\2")
    second = scene.commit("second", a="1\n3\n4\n")
    changes = mirrored(scene, tmp_path).diff_summary(first, second)
    assert changes == (
        FileChange(path="a", added=2, removed=1),
        FileChange(path="blob", added=None, removed=None),
    )


# -- the way back -----------------------------------------------------------------


@pytest.mark.parametrize("way", [merge_tree, apply_reverse])
def test_a_revert_takes_back_one_change_and_keeps_the_later_ones(
    scene: RepositoryScene, tmp_path: Path, way: object
) -> None:
    lines = [f"{number}\n" for number in range(30)]
    parent = scene.commit("base", a="".join(lines))
    lines[3] = "culprit\n"
    culprit = scene.commit("culprit", a="".join(lines), new="x")
    lines[25] = "later\n"
    last = scene.commit("later", a="".join(lines))
    mirror = mirrored(scene, tmp_path)
    undone = way(mirror.folder, culprit, parent, last)  # type: ignore[operator]
    lines[3] = "3\n"
    assert undone.clean
    state = mirror.commit_tree(undone.tree, last, "Revert")
    assert mirror.read_file(state, "a").decode() == "".join(lines)
    with pytest.raises(MissingPath):
        mirror.read_file(state, "new")
    assert mirror.commit_tree(undone.tree, last, "Revert") == state


@pytest.mark.parametrize("way", [merge_tree, apply_reverse])
def test_a_revert_that_conflicts_names_the_paths(scene: RepositoryScene, tmp_path: Path, way: object) -> None:
    parent = scene.commit("base", a="1\n", b="1\n")
    culprit = scene.commit("culprit", a="2\n", b="2\n")
    last = scene.commit("later", a="3\n")
    mirror = mirrored(scene, tmp_path)
    assert way(mirror.folder, culprit, parent, last) == Revert(tree=None, conflicts=("a",))  # type: ignore[operator]


def test_the_mirror_reverts_a_merge_against_its_first_parent(scene: RepositoryScene, tmp_path: Path) -> None:
    scene.commit("base", a="1")
    scene.git("checkout", "-q", "-b", "side")
    scene.commit("side", b="1")
    scene.git("checkout", "-q", "main")
    scene.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    merge = scene.head
    last = scene.commit("last", c="1")
    mirror = mirrored(scene, tmp_path)
    undone = mirror.revert(merge, last)
    assert undone.tree is not None
    state = mirror.commit_tree(undone.tree, last, "Revert")
    assert [entry.path for entry in mirror.tree(state)] == ["a", "c"]


def test_git_is_new_enough_for_what_the_tests_say() -> None:
    assert git_version() >= (2, 31)
