"""What a bisection takes over of another one, and what it measures again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.measurements import Measurements
from bisection.ledger import Purpose
from bisection.report import CulpritReport
from tests.integration.two_hosts import Hosts, history, model


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.database.close()


def taken(report: CulpritReport) -> list[str]:
    return [row.taken_from for row in report.trials if row.taken_from]


def test_the_next_night_pays_only_for_what_is_new(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")}, {"docs__md": "1"})
    first = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    hashes.append(hosts.scene.commit("The next night", src___b__py=model(_1="night")))
    before = len(hosts.ran)
    second = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    assert second.finding.commits == first.finding.commits == (hashes[4],)
    paid = hosts.ran[before:]
    # Its own bad end first, and the revert on it: the rest was measured the night before, commit by commit.
    assert paid[0].state.commit == hashes[-1]
    assert sum(trial.purpose is Purpose.REVERT for trial in paid) == 1
    assert len(paid) <= len(first.trials) // 2
    assert len(set(taken(second))) == len(taken(second)) >= 4


def test_equal_files_are_taken_over_whatever_the_commit_is_called(hosts: Hosts) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    hosts.finish(hosts.create(hashes[0], hashes[-1]))
    # The same changes on another branch, under other hashes.
    hosts.scene.git("checkout", "-q", "-b", "again", hashes[0])
    again = [hosts.scene.commit("Elsewhere", src___b__py=model(_1="x"), docs__md="9")]
    again.append(hosts.scene.commit("y", src___b__py=model(_1="y")))
    again.append(hosts.scene.commit("more", src___a__py=model(_11="more")))
    again.append(hosts.scene.commit("BAD", src___a__py=model(_11="more", _3="BAD")))
    again.append(hosts.scene.commit("z", src___b__py=model(_1="z")))
    report = hosts.finish(hosts.create(hashes[0], "again"))
    assert report.finding.commits == (again[3],)
    assert again[2] in {row.state.commit for row in report.trials if row.taken_from}


@pytest.mark.parametrize("why", ["refused", "other overrides", "retracted"])
def test_what_must_not_count_is_measured_again(hosts: Hosts, why: str) -> None:
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    first = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    if why == "retracted":
        # The revert is of no use to others, and has no key.
        assert Measurements(hosts.database).retract(worker="w") == len(first.trials) - 1
    more: dict[str, Any] = {"reuse": False} if why == "refused" else {}
    if why == "other overrides":
        more["overrides"] = {"train.lr": 1}
    second = hosts.finish(hosts.create(hashes[0], hashes[-1], **more))
    assert second.finding.commits == first.finding.commits
    assert taken(second) == []


@pytest.mark.parametrize("digest", [None, "sha256:1"])
def test_data_outside_the_tree_count_as_the_same_only_with_a_digest(
    tmp_path: Path, digest: str | None
) -> None:
    hosts = Hosts(tmp_path, data={"kind": "real", "path": "/data/photographs", "digest": digest})
    hashes = history(hosts.scene, {"src___b__py": model(_1="z")})
    for _ in range(2):
        report = hosts.finish(hosts.create(hashes[0], hashes[-1]))
    assert bool(taken(report)) is (digest is not None)
    hosts.database.close()
