"""Whole bisections through the API of a running `firstbad up`, right requests and wrong ones."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import ApiProblem, Client
from tests.e2e.installation import CAPACITY_BYTES, Installation, Training, finish

GOOD, BAD = {"bytes": 900}, {"bytes": 1100}


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation") / "home")
    installation.up()
    yield installation
    installation.down()
    assert not installation.processes(), "Ctrl-C left processes behind"


@pytest.fixture
def client(installation: Installation) -> Iterator[Client]:
    server = installation.wait_for_server()
    with Client(server.url, server.token) as client:
        yield client


@pytest.fixture
def training(installation: Installation, tmp_path: Path) -> Training:
    return Training(installation, tmp_path / "training")


def request(good: str, bad: str, **more: Any) -> dict[str, Any]:
    # The tests plant the same files again and again: each measures its own, unless it says otherwise.
    return {"profile": "small", "good": good, "bad": bad, "reuse": False, **more}


def test_a_planted_culprit_is_found_among_commits_that_break_otherwise(
    client: Client, training: Training
) -> None:
    #  good  .  breaks  mock  breaks  CULPRIT  .  bad
    hashes = training.commits(
        GOOD,
        GOOD,
        {"breaks": "no such file"},
        {"bytes": 100, "invalid": "mock data"},
        GOOD,
        {"breaks": "another fault"},
        GOOD,
        BAD,
        {"bytes": 1111},
        {"bytes": 1105},
    )
    report = finish(client, request(hashes[0], "main"))
    assert report["finding"]["kind"] == "found", report["finding"]
    assert report["finding"]["commits"] == [hashes[7]]
    assert report["regression"]["component"] == "experts" or report["regression"]["component"] == "decoder"
    failed = [t for t in report["trials"] if t["state"]["commit"] == hashes[7]]
    assert len(failed) >= 2
    assert len({t["worker"] for t in failed}) == 2


def test_a_crash_is_bisected_by_its_signature(client: Client, training: Training) -> None:
    hashes = training.commits(
        GOOD, {"breaks": "disk is full"}, GOOD, {"breaks": "bad axis"}, {"breaks": "bad axis"}
    )
    report = finish(client, request(hashes[0], hashes[-1], criterion={"kind": "crash"}))
    assert report["finding"]["commits"] == [hashes[3]], report["finding"]


def test_a_preview_runs_nothing_until_it_is_confirmed(client: Client, training: Training) -> None:
    hashes = training.commits(GOOD, GOOD, BAD)
    row = client.create(request(hashes[0], hashes[-1], preview=True))
    planned = client.wait(row["id"], timeout_seconds=60)
    assert planned["status"] == "planned"
    assert planned["plan"]["commits"] == 2
    assert planned["plan"]["trials"] >= 4
    assert client.trials(row["id"]) == []
    client.confirm(row["id"])
    client.wait(row["id"], timeout_seconds=60)
    assert client.report(row["id"], "json")["finding"]["commits"] == [hashes[-1]]


@pytest.mark.parametrize(
    ("good", "bad", "problem", "says"),
    [
        ("no-such-branch", "{last}", "unknown-ref", "no-such-branch"),
        ("{last}", "{first}", "bad-range", "swap them"),
        ("{last}", "{last}~0", "bad-range", "same commit"),
    ],
)
def test_refs_that_span_no_range_are_rejected_with_the_repair(
    client: Client, training: Training, good: str, bad: str, problem: str, says: str
) -> None:
    hashes = training.commits(GOOD, GOOD, BAD)
    words = {"first": hashes[0], "last": hashes[-1]}
    report = finish(client, request(good.format(**words), bad.format(**words)))
    assert report["finding"]["kind"] == "rejected"
    assert report["finding"]["problem"] == problem
    assert says in report["finding"]["why"]


def test_the_same_word_for_both_ends_is_refused_at_once(client: Client, training: Training) -> None:
    with pytest.raises(ApiProblem) as problem:
        client.create(request("main", "main"))
    assert problem.value.status == 422


def test_a_bad_end_that_passes_is_an_answer_without_a_culprit(client: Client, training: Training) -> None:
    hashes = training.commits(GOOD, GOOD, GOOD)
    finding = finish(client, request(hashes[0], hashes[-1]))["finding"]
    assert (finding["kind"], finding["problem"]) == ("none", "bad-end-passes")


def test_a_good_end_that_fails_is_an_answer_without_a_culprit(client: Client, training: Training) -> None:
    hashes = training.commits(BAD, BAD, BAD)
    finding = finish(client, request(hashes[0], hashes[-1]))["finding"]
    assert (finding["kind"], finding["problem"]) == ("none", "good-end-is-bad")


def test_a_capacity_below_what_anything_needs_says_that_both_ends_fail(
    client: Client, training: Training
) -> None:
    hashes = training.commits(GOOD, GOOD, BAD)
    criterion = {"kind": "out_of_memory", "capacity_bytes": 1}
    finding = finish(client, request(hashes[0], hashes[-1], criterion=criterion))["finding"]
    assert finding["problem"] == "good-end-is-bad"
    assert "as the bad end does" in finding["why"]
    assert "limit" in finding["why"]


def test_an_override_that_the_training_does_not_know_is_rejected_by_name(
    client: Client, training: Training
) -> None:
    hashes = training.commits(GOOD, GOOD, BAD)
    # The bad end is then the state of an earlier commit: only that one is run.
    hashes.append(training.scene.commit("Change nothing that matters", README__md="words"))
    training.write_profile("small", relevant_paths=["train.py", "plan.json"])
    overrides = {"train.micro_batch_sise": 2}
    finding = finish(client, request(hashes[0], hashes[-1], overrides=overrides))["finding"]
    assert (finding["kind"], finding["problem"]) == ("rejected", "unknown-configuration-key")
    assert "train.micro_batch_sise" in finding["why"]


def test_a_crash_that_reads_like_a_refused_override_is_bisected_all_the_same(
    client: Client, training: Training
) -> None:
    broken = {"breaks": "'Model' object has no key 'num_layers'"}
    hashes = training.commits(GOOD, GOOD, broken, broken)
    overrides = {"model.num_layers": 2}
    report = finish(client, request(hashes[0], hashes[-1], criterion={"kind": "crash"}, overrides=overrides))
    assert report["finding"]["commits"] == [hashes[2]], report["finding"]


def test_an_override_that_a_configuration_library_would_evaluate_is_rejected(
    client: Client, training: Training
) -> None:
    hashes = training.commits(GOOD, BAD)
    overrides = {"train.micro_batch_size": "${oc.env:HOME}"}
    finding = finish(client, request(hashes[0], hashes[-1], overrides=overrides))["finding"]
    assert (finding["kind"], finding["problem"]) == ("rejected", "override-refused")
    assert "train.micro_batch_size" in finding["why"]


def test_a_repository_that_is_gone_is_rejected_with_the_repair(
    client: Client, training: Training, tmp_path: Path
) -> None:
    training.register("repositories", "gone", {"name": "gone", "url": f"file://{tmp_path}/nowhere"})
    training.write_profile("of-gone", repository="gone")
    report = finish(client, {"profile": "of-gone", "good": "a", "bad": "b"})
    assert report["finding"]["problem"] == "repository-unreachable"


def test_an_override_reaches_the_training(client: Client, training: Training) -> None:
    hashes = training.commits({"bytes": 400}, {"bytes": 400}, {"bytes": 600})
    overrides = {"train.micro_batch_size": 2}
    report = finish(client, request(hashes[0], hashes[-1], overrides=overrides))
    assert report["finding"]["commits"] == [hashes[-1]]


def test_a_profile_that_does_not_exist_is_refused_at_once(client: Client, training: Training) -> None:
    with pytest.raises(ApiProblem, match="nightly-2") as problem:
        client.create({"profile": "nightly-2", "good": "a", "bad": "b"})
    assert problem.value.status == 422
    assert "small" in str(problem.value.errors)


def test_a_profile_of_an_unregistered_repository_is_refused_at_once(
    client: Client, training: Training
) -> None:
    training.write_profile("orphan", repository="elsewhere")
    with pytest.raises(ApiProblem, match="elsewhere"):
        client.create({"profile": "orphan", "good": "a", "bad": "b"})


def test_a_cancelled_bisection_ends_with_its_best_answer(client: Client, training: Training) -> None:
    hashes = training.commits(*[GOOD] * 20, *[BAD] * 20)
    row = client.create(request(hashes[0], hashes[-1]))
    client.cancel(row["id"])
    client.wait(row["id"], timeout_seconds=60)
    finding = client.report(row["id"], "json")["finding"]
    assert finding["kind"] in ("set", "none")
    assert finding["problem"] == "cancelled"
    assert all(trial["status"] in ("done", "cancelled") for trial in client.trials(row["id"]))


def test_a_budget_that_is_spent_ends_in_the_best_answer_so_far(client: Client, training: Training) -> None:
    hashes = training.commits(*[GOOD] * 20, *[BAD] * 20)
    report = finish(client, request(hashes[0], hashes[-1], budget={"trials": 4}))
    assert report["finding"]["kind"] == "set"
    assert report["finding"]["problem"] == "budget-spent"
    assert hashes[20] in report["finding"]["commits"]
    assert len(report["trials"]) <= 4


def test_what_another_bisection_measured_is_taken_over_and_said_so(
    client: Client, training: Training
) -> None:
    hashes = training.commits(*[{"bytes": 901}] * 5, *[{"bytes": 1101}] * 3)
    first = finish(client, request(hashes[0], hashes[-1]))
    second = finish(client, request(hashes[0], hashes[-1], reuse=True))
    assert second["finding"]["commits"] == first["finding"]["commits"] == [hashes[5]]
    taken = [trial for trial in second["trials"] if trial["taken_from"]]
    own = [trial for trial in second["trials"] if not trial["taken_from"]]
    assert {trial["taken_from"].split("/")[0] for trial in taken} == {first["asked"]["bisection"]}
    assert len({trial["taken_from"] for trial in taken}) == len(taken)
    assert own[0]["sequence"] < min(trial["sequence"] for trial in taken)  # one of today's comes first
    assert len(own) <= 3 < len(first["trials"])
    assert "taken over from other bisections" in client.report(second["asked"]["bisection"], "markdown")
    workers = {trial["worker"] for trial in client.trials(first["asked"]["bisection"])}
    assert sum(client.retract(worker=worker) for worker in workers) >= len(first["trials"])
    third = finish(client, request(hashes[0], hashes[-1], reuse=True))
    assert not [trial for trial in third["trials"] if trial["taken_from"]]


def test_the_command_line_prints_the_report_that_the_api_has(
    installation: Installation, training: Training
) -> None:
    hashes = training.commits(GOOD, GOOD, BAD)
    done = installation.firstbad("submit", "--profile", "small", "--good", hashes[0], "--bad", hashes[-1])
    assert done.returncode == 0, done.stderr
    assert hashes[-1][:10] in done.stdout
    assert "SIMULATED" in done.stdout
    assert "small" in installation.firstbad("list").stdout


def test_the_operators_token_is_readable_by_the_operator_alone(installation: Installation) -> None:
    mode = stat.S_IMODE(installation.settings.token_file.stat().st_mode)
    assert mode == 0o600


def test_a_second_up_uses_the_first(installation: Installation, client: Client) -> None:
    done = installation.firstbad("up")
    assert done.returncode == 0
    assert "already up" in done.stdout


def test_the_capacity_is_what_the_profile_says(client: Client, training: Training) -> None:
    hashes = training.commits(GOOD, BAD)
    report = finish(client, request(hashes[0], hashes[-1]))
    assert report["memory"]["capacity_bytes"] == CAPACITY_BYTES
