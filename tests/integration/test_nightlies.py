"""What a worker makes of reported runs, with a stand-in of GitHub's API over real HTTP."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bisection.adapters.storage.bisections import Status
from bisection.adapters.storage.deliveries import Deliveries, Delivery, DeliveryStatus
from bisection.adapters.storage.removals import Removals
from firstbad.github_stand_in import Fault
from tests.integration.nightly_scene import NightlyScene, serving
from tests.unit.service.scene import BAD, CAPACITY, GITHUB, GOOD, PROFILE, REPOSITORY, profile_file
from workers.settling import settle

LATER, NEXT = "c" * 40, "d" * 40

#: As a runner prints it: its time before each line, torchrun's ranks, and torchrun's own complaint after it.
OOM_LOG = """\
2026-11-30T02:10:00.0000000Z ##[group]Run torchrun train.py
2026-11-30T02:10:01.0000000Z \x1b[36;1mloading\x1b[0m
2026-11-30T02:11:02.0000000Z [rank0]: Traceback (most recent call last):
2026-11-30T02:11:02.0000000Z [rank0]:   File "/work/training/train.py", line 210, in step
2026-11-30T02:11:02.0000000Z [rank0]:     loss.backward()
2026-11-30T02:11:02.0000000Z [rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB.
2026-11-30T02:11:09.0000000Z Traceback (most recent call last):
2026-11-30T02:11:09.0000000Z   File "/usr/bin/torchrun", line 8, in <module>
2026-11-30T02:11:09.0000000Z torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
2026-11-30T02:11:09.0000000Z ============================================================
2026-11-30T02:11:09.0000000Z ##[error]Process completed with exit code 1.
"""


def crash_log(message: str) -> str:
    return (
        'Traceback (most recent call last):\n  File "/w/recipes/vlm.py", line 3, in build\n    go()\n'
        f"ImportError: {message}\n"
    )


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[NightlyScene]:
    with NightlyScene(tmp_path) as scene:
        yield scene


def decisions(delivery: Delivery) -> dict[str, str]:
    assert delivery.status is DeliveryStatus.SETTLED, (delivery.status, delivery.result)
    return {outcome["job"]: outcome["decision"] for outcome in delivery.outcomes}


def outcome(delivery: Delivery, job: str) -> Mapping[str, Any]:
    return next(one for one in delivery.outcomes if one["job"] == job)


def events(scene: NightlyScene, bisection: str, kind: str) -> Sequence[Mapping[str, Any]]:
    return [event.payload for event in scene.context.bisections.events(bisection, kind=kind)]


def green_then_red(scene: NightlyScene, log: Any = OOM_LOG) -> Delivery:
    scene.deliver_run(scene.run(100, GOOD, ("train", "success")))
    return scene.deliver_run(scene.run(200, BAD, ("train", "failure", log)))


# --- from a run to a bisection ---------------------------------------------------------------------


def test_a_failed_job_is_bisected_from_its_own_last_green(scene: NightlyScene) -> None:
    """The nightly of run 150 is red through another job: `train` was green there."""
    scene.deliver_run(scene.run(100, GOOD, ("train", "success"), ("lint", "success")))
    scene.deliver_run(scene.run(150, LATER, ("train", "success"), ("lint", "failure", crash_log("x"))))
    red = scene.deliver_run(scene.run(200, BAD, ("train", "failure", OOM_LOG), ("lint", "skipped")))
    assert decisions(red) == {"train": "started", "lint": "ignored"}
    newest = scene.bisections()[0]
    assert (newest["request"]["good"], newest["request"]["bad"]) == (LATER, BAD)
    assert newest["source"] == f"github:{GITHUB}/actions/runs/200"


def test_the_request_has_every_field_that_a_persons_has(scene: NightlyScene) -> None:
    green_then_red(scene)
    asked = scene.service.client.post(
        "/v1/bisections", json={"profile": PROFILE, "good": GOOD, "bad": BAD}
    ).json()
    made = scene.bisections()[-1]
    assert made["id"] != asked["id"]
    assert made["request"] == asked["request"]


@pytest.mark.parametrize("conclusion", ["cancelled", "skipped", "neutral", "timed_out", "action_required"])
def test_what_is_neither_success_nor_failure_is_unknown_and_never_green(
    scene: NightlyScene, conclusion: str
) -> None:
    first = scene.deliver_run(scene.run(100, GOOD, ("train", conclusion)))
    assert decisions(first) == {"train": "ignored"}
    red = scene.deliver_run(scene.run(200, BAD, ("train", "failure")))
    assert "no last green is known" in outcome(red, "train")["why"]
    assert scene.bisections() == []


def test_without_a_green_run_the_range_starts_where_the_operator_said(scene: NightlyScene) -> None:
    scene.write(webhook={"good": "v0.3.0"})
    scene.deliver_run(scene.run(200, BAD, ("train", "failure")))
    assert scene.bisections()[0]["request"]["good"] == "v0.3.0"


def test_a_late_green_run_does_not_move_the_last_green_back(scene: NightlyScene) -> None:
    for run, sha in ((150, LATER), (120, NEXT), (250, "e" * 40)):
        scene.deliver_run(scene.run(run, sha, ("train", "success")))
    scene.deliver_run(scene.run(200, BAD, ("train", "failure")))
    assert scene.bisections()[0]["request"]["good"] == LATER


def test_a_commit_that_was_green_before_is_not_to_blame(scene: NightlyScene) -> None:
    scene.deliver_run(scene.run(100, BAD, ("train", "success")))
    red = scene.deliver_run(scene.run(200, BAD, ("train", "failure")))
    assert "same commit was green" in outcome(red, "train")["why"]


def test_older_runs_are_decided_first_whatever_came_first(scene: NightlyScene) -> None:
    """Both are stored before a worker comes; the failure alone would find no green."""
    for row in (scene.run(200, BAD, ("train", "failure")), scene.run(100, GOOD, ("train", "success"))):
        payload = {
            "action": "completed",
            "workflow_run": {**row, "head_repository": {"full_name": GITHUB}},
            "repository": {"full_name": GITHUB},
        }
        scene.service.deliver(payload, delivery=f"d-{row['id']}")
    settle(scene.context, REPOSITORY)
    assert scene.bisections()[0]["request"]["good"] == GOOD


# --- profile, criterion, signature ------------------------------------------------------------------


def test_a_log_of_memory_gives_a_criterion_of_memory_whatever_its_wrapping(scene: NightlyScene) -> None:
    red = green_then_red(scene)
    assert "out_of_memory" in outcome(red, "train")["why"]
    criterion = scene.bisections()[0]["request"]["criterion"]
    assert (criterion["kind"], criterion["capacity_bytes"]) == ("out_of_memory", CAPACITY)


def test_a_log_of_a_crash_is_not_bisected_by_memory(scene: NightlyScene) -> None:
    red = green_then_red(scene, crash_log("cannot import name 'x'"))
    assert "ImportError: cannot import name 'x' @ vlm.py:build" in outcome(red, "train")["why"]
    assert scene.bisections()[0]["request"]["criterion"]["kind"] == "crash"


def test_a_log_of_the_machinery_starts_nothing(scene: NightlyScene) -> None:
    fault = "torch.distributed.DistNetworkError: Connection reset by peer"
    log = crash_log("x").replace("ImportError: x", fault)
    assert outcome(green_then_red(scene, log), "train")["decision"] == "ignored"
    assert scene.bisections() == []


def test_the_first_rule_that_fits_a_job_says_profile_and_criterion(scene: NightlyScene) -> None:
    memory = {"kind": "out_of_memory"}
    scene.service.write("profiles", profile_file("perf", capacity_bytes=1, criterion=memory))
    rules = [
        {"job": "L2_perf*", "profile": "perf", "criterion": {"kind": "throughput", "threshold": 900.0}},
        {"job": "L2_*"},
    ]
    scene.write(webhook={"jobs": rules})
    names = ("L2_perf [h100]", "L2_train", "Nemo_CICD_Test")
    scene.deliver_run(scene.run(100, GOOD, *[(name, "success") for name in names]))
    red = scene.deliver_run(scene.run(200, BAD, *[(name, "failure") for name in names]))
    assert decisions(red) == {"L2_perf [h100]": "started", "L2_train": "started", "Nemo_CICD_Test": "ignored"}
    made = {row["request"]["profile"]: row["request"]["criterion"]["kind"] for row in scene.bisections()}
    assert made == {"perf": "throughput", PROFILE: "out_of_memory"}


def test_a_log_may_come_as_an_archive(scene: NightlyScene) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("1_train.txt", OOM_LOG)
    assert "out_of_memory" in outcome(green_then_red(scene, packed.getvalue()), "train")["why"]


def test_a_log_that_is_gone_leaves_the_profiles_criterion(scene: NightlyScene) -> None:
    scene.world.faults = [Fault(method="GET", path="/logs", status=410)]
    green_then_red(scene)
    assert scene.bisections()[0]["request"]["criterion"]["kind"] == "out_of_memory"


def test_a_log_is_fetched_from_configured_hosts_alone_and_without_the_token(scene: NightlyScene) -> None:
    scene.write(github={"log_hosts": ["*.blob.core.windows.net"]})
    red = green_then_red(scene)
    assert red.status is DeliveryStatus.FAILED
    assert "not among github.log_hosts" in red.result
    assert not any(path.startswith("/_logs") for _, path in scene.world.requests)
    scene.write()
    assert Deliveries(scene.database).release(red.id)
    assert decisions(scene.settled(red.id)) == {"train": "started"}  # the stand-in refuses a log with a token


# --- one bisection for one failure -------------------------------------------------------------------


def test_later_nights_attach_to_the_bisection_of_the_first(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    again = scene.deliver_run(scene.run(300, LATER, ("train", "failure", OOM_LOG)))
    assert decisions(again) == {"train": "attached"}
    assert len(scene.bisections()) == 1
    (note,) = events(scene, made["id"], "failed_again")
    assert (note["commit"], note["signature"]) == (LATER, "out_of_memory")


def test_nights_attach_to_a_bisection_that_a_later_one_had_to_start(scene: NightlyScene) -> None:
    """The first found no green commit; the second is bisected, after the operator named one."""
    scene.deliver_run(scene.run(200, BAD, ("train", "failure", OOM_LOG)))
    scene.write(webhook={"good": GOOD})
    second = scene.deliver_run(scene.run(300, LATER, ("train", "failure", OOM_LOG)))
    assert decisions(second) == {"train": "started"}
    (made,) = scene.bisections()
    assert made["request"]["bad"] == BAD
    scene.service.finish_with_culprit(made["id"])
    assert decisions(scene.deliver_run(scene.run(400, NEXT, ("train", "failure", OOM_LOG)))) == {
        "train": "attached"
    }


def test_another_signature_is_another_failure(scene: NightlyScene) -> None:
    green_then_red(scene)
    scene.deliver_run(scene.run(300, LATER, ("train", "failure", crash_log("gone"))))
    assert [row["request"]["bad"] for row in scene.bisections()] == [LATER, BAD]


def test_a_failure_is_not_bisected_again_once_its_culprit_is_known(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    scene.service.finish_with_culprit(made["id"])
    again = scene.deliver_run(scene.run(300, LATER, ("train", "failure", OOM_LOG)))
    assert "has its answer" in outcome(again, "train")["why"]
    assert len(scene.bisections()) == 1


def test_a_failure_that_came_to_nothing_is_bisected_again_when_it_comes_back(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    scene.service.finish(made["id"], {})
    again = scene.deliver_run(scene.run(300, LATER, ("train", "failure", OOM_LOG)))
    assert decisions(again) == {"train": "started"}
    assert len(scene.bisections()) == 2


def test_a_failure_whose_bisection_was_deleted_is_bisected_again(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    scene.service.finish_with_culprit(made["id"])
    Removals(scene.database).delete(made["id"], "ada")
    again = scene.deliver_run(scene.run(300, LATER, ("train", "failure", OOM_LOG)))
    assert decisions(again) == {"train": "started"}
    assert decisions(scene.deliver_run(scene.run(200, BAD, ("train", "success"), run_attempt=2))) == {
        "train": "recorded"
    }


def test_a_signed_body_under_a_new_delivery_id_starts_nothing_even_after_the_end(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    scene.service.finish(made["id"], {})
    replayed = scene.deliver_run(scene.world.runs[-1], delivery="replayed")
    assert decisions(replayed) == {"train": "duplicate"}
    assert len(scene.bisections()) == 1


def test_a_job_that_passes_when_run_again_closes_its_bisection_as_flaky(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    scene.service.resolve(made["id"])
    scene.service.queue_trial(made["id"])
    again = scene.deliver_run(scene.run(200, BAD, ("train", "success"), run_attempt=2))
    assert decisions(again) == {"train": "closed"}
    row = scene.context.bisections.get(made["id"])
    assert row.status is Status.REPORTING
    assert row.finding is not None
    assert (row.finding["kind"], row.finding["problem"]) == ("none", "went-green")
    assert {trial.status.value for trial in scene.context.trials.of(made["id"])} == {"cancelled"}


def test_a_pass_at_the_first_commit_closes_nothing_where_later_commits_fail_too(scene: NightlyScene) -> None:
    green_then_red(scene)
    (made,) = scene.bisections()
    scene.deliver_run(scene.run(300, LATER, ("train", "failure", OOM_LOG)))
    again = scene.deliver_run(scene.run(200, BAD, ("train", "success"), run_attempt=2))
    assert decisions(again) == {"train": "recorded"}
    assert scene.context.bisections.get(made["id"]).status is Status.RESOLVING
    assert events(scene, made["id"], "passed_again")


# --- limits -------------------------------------------------------------------------------------------


def test_what_exceeds_the_days_bisections_is_held_and_can_be_released(scene: NightlyScene) -> None:
    scene.write(limits={"bisections_a_day": 1})
    scene.deliver_run(scene.run(100, GOOD, ("a", "success"), ("b", "success")))
    red = scene.deliver_run(scene.run(200, BAD, ("a", "failure"), ("b", "failure")))
    assert red.status is DeliveryStatus.HELD
    assert {one["job"]: one["decision"] for one in red.outcomes} == {"a": "started", "b": "held"}
    assert "limits.bisections_a_day is 1" in outcome(red, "b")["why"]
    assert len(scene.bisections()) == 1
    answer = scene.service.client.post(f"/v1/deliveries/{red.id}/release")
    assert answer.status_code == 202, answer.text
    assert decisions(scene.settled(red.id)) == {"a": "duplicate", "b": "started"}
    assert len(scene.bisections()) == 2
    assert scene.service.client.post(f"/v1/deliveries/{red.id}/release").status_code == 409


def test_the_budgets_of_a_day_are_limited(scene: NightlyScene) -> None:
    scene.write(limits={"gpu_hours": 20.0, "gpu_hours_a_day": 30.0})
    scene.deliver_run(scene.run(100, GOOD, ("a", "success"), ("b", "success")))
    red = scene.deliver_run(scene.run(200, BAD, ("a", "failure"), ("b", "failure")))
    assert "gpu_hours_a_day" in outcome(red, "b")["why"]
    assert scene.bisections()[0]["request"]["budget"]["gpu_hours"] == 20.0


# --- GitHub away, or refusing ---------------------------------------------------------------------------


def test_a_github_that_is_away_is_asked_again_and_nothing_is_lost(scene: NightlyScene) -> None:
    scene.world.faults = [Fault(method="GET", path="/jobs", status=503, headers={"retry-after": "60"})]
    row = scene.run(100, GOOD, ("train", "success"))
    waiting = scene.deliver_run(row)
    assert waiting.status is DeliveryStatus.RECEIVED
    assert "503" in waiting.result
    assert scene.deliver_run(scene.run(200, BAD, ("train", "failure"))).result == ""  # it waits its turn
    Deliveries(scene.database).postpone(waiting.id, 1, -1, "the minute is over")
    assert decisions(scene.settled(waiting.id)) == {"train": "recorded"}
    assert scene.bisections()[0]["request"]["good"] == GOOD


def test_a_token_that_is_not_valid_is_said_with_its_repair_and_never_shown(scene: NightlyScene) -> None:
    secret = "ghp_" + "s" * 36
    (scene.folder / "token").write_text(secret)
    refused = scene.deliver_run(scene.run(100, GOOD, ("train", "success")))
    assert refused.status is DeliveryStatus.FAILED
    assert "401" in refused.result
    assert "make a new one" in refused.result
    assert secret not in refused.result


def test_a_rule_with_an_unknown_profile_is_the_operators_matter(scene: NightlyScene) -> None:
    scene.deliver_run(scene.run(100, GOOD, ("train", "success")))
    scene.write(webhook={"profile": "gone"})
    red = scene.deliver_run(scene.run(200, BAD, ("train", "failure")))
    assert red.status is DeliveryStatus.FAILED
    assert "'gone'" in red.result
    scene.write()
    Deliveries(scene.database).release(red.id)
    assert decisions(scene.settled(red.id)) == {"train": "started"}


def test_without_access_to_github_whole_runs_are_compared(scene: NightlyScene) -> None:
    scene.service.write_webhook()  # no `github`
    scene.deliver_run(scene.run(100, GOOD, ("train", "success")))
    red = scene.deliver_run(scene.run(200, BAD, ("train", "failure")))
    assert decisions(red) == {"": "started"}
    assert scene.world.requests == []


# --- check runs -------------------------------------------------------------------------------------------


def check_payload(**fields: Any) -> dict[str, Any]:
    """What we read of a `check_run` delivery, and some of the fields around it."""
    check = {
        "id": 200100,
        "name": "train",
        "head_sha": BAD,
        "status": "completed",
        "conclusion": "failure",
        "external_id": "",
        "html_url": "https://github.example/check",
        "output": {"title": None, "summary": None, "text": None, "annotations_count": 0},
        "app": {"id": 15368, "slug": "github-actions"},
        "check_suite": {"id": 9, "head_branch": "main", "head_sha": BAD},
        "pull_requests": [],
        **fields,
    }
    return {"action": "completed", "check_run": check, "repository": {"full_name": GITHUB}}


def deliver_check(scene: NightlyScene, delivery: str = "c-1", **fields: Any) -> Delivery:
    answer = scene.service.deliver(check_payload(**fields), delivery=delivery, event="check_run")
    assert answer.json()["decision"] == "accepted", answer.text
    return scene.settled(delivery)


def test_a_check_of_actions_is_its_job_and_the_run_that_follows_adds_nothing(scene: NightlyScene) -> None:
    scene.deliver_run(scene.run(100, GOOD, ("train", "success")))
    red = scene.run(200, BAD, ("train", "failure", OOM_LOG))
    assert decisions(deliver_check(scene, id=red["jobs"][0]["id"])) == {"train": "started"}
    assert decisions(scene.deliver_run(red)) == {"train": "duplicate"}


def test_a_check_of_a_forks_run_is_refused(scene: NightlyScene) -> None:
    red = scene.run(200, BAD, ("train", "failure"), head_repository="stranger/megatron-bridge")
    assert decisions(deliver_check(scene, id=red["jobs"][0]["id"])) == {"train": "refused"}


def test_a_check_of_another_app_counts_if_it_is_listed_and_its_commit_is_on_the_branch(
    scene: NightlyScene,
) -> None:
    scene.write(webhook={"checks": ["perf/*"], "good": GOOD})
    scene.world.branches = {"main": [GOOD, BAD]}
    told = {"title": "Failed", "summary": "torch.OutOfMemoryError: CUDA out of memory.", "text": None}
    fields: dict[str, Any] = {"name": "perf/h100", "app": {"slug": "buildkite"}, "output": told}
    assert decisions(deliver_check(scene, **fields)) == {"perf/h100": "started"}
    foreign = deliver_check(scene, "c-2", **fields, id=7, head_sha=LATER)
    assert decisions(foreign) == {"perf/h100": "refused"}
    strange = check_payload(name="lint", app={"slug": "x"})
    other = scene.service.deliver(strange, delivery="c-3", event="check_run")
    assert other.json()["decision"] == "ignored"


# --- catching up -------------------------------------------------------------------------------------------


def test_missed_runs_are_caught_up_with_on_request(scene: NightlyScene) -> None:
    scene.run(100, GOOD, ("train", "success"))
    scene.run(150, LATER, ("train", "success"), head_repository="stranger/megatron-bridge")
    scene.run(160, LATER, ("train", "success"), name="docs")
    scene.run(200, BAD, ("train", "failure", OOM_LOG))
    answer = scene.service.client.post(f"/v1/repositories/{REPOSITORY}/catch-up")
    assert answer.status_code == 202, answer.text
    done = scene.settled(answer.json()["id"])
    assert done.result.startswith("caught up: 2 runs")
    (made,) = scene.bisections()
    assert (made["request"]["good"], made["request"]["bad"]) == (GOOD, BAD)
    again = scene.service.client.post(f"/v1/repositories/{REPOSITORY}/catch-up").json()["id"]
    assert scene.settled(again).result.startswith("caught up: 0 runs")


def test_catching_up_needs_a_github_that_can_be_asked(scene: NightlyScene) -> None:
    scene.service.write_webhook()
    for name in (REPOSITORY, "nothing"):
        assert scene.service.client.post(f"/v1/repositories/{name}/catch-up").status_code == 404


# --- reports of another CI ----------------------------------------------------------------------------------


def test_another_ci_reports_green_and_red_and_a_bisection_starts(scene: NightlyScene) -> None:
    assert scene.report(run=6, conclusion="success", commit=GOOD, delivery="r-0").status_code == 202
    answer = scene.report(commit=BAD, log=OOM_LOG)
    assert answer.json()["decision"] == "accepted"
    settle(scene.context, REPOSITORY)
    shown = scene.service.client.get(answer.json()["delivery"].replace("http://testserver", "")).json()
    assert shown["outcomes"][0]["decision"] == "started"
    (made,) = scene.bisections()
    assert (made["request"]["good"], made["request"]["bad"]) == (GOOD, BAD)
    assert made["request"]["criterion"]["kind"] == "out_of_memory"
    assert made["source"] == f"ci:{REPOSITORY}/perf/7"


def test_the_script_of_the_documentation_reports_a_run(scene: NightlyScene, tmp_path: Path) -> None:
    for tool in ("bash", "curl", "openssl"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    page = Path(__file__).parents[2] / "docs" / "how-to" / "github.md"
    (script,) = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    script = script.replace("/ci/training", f"/ci/{REPOSITORY}")
    (tmp_path / "log").write_text(OOM_LOG + 'quotes " and \\ and \u00e4\n', encoding="utf-8")
    for run, conclusion, commit in ((6, "success", GOOD), (7, "failure", BAD)):
        with serving(scene.service.app) as url:
            done = subprocess.run(
                ["bash", "-euc", f"{script}\nreport perf {conclusion} {commit} log"],
                cwd=tmp_path,
                env={
                    "PATH": os.environ["PATH"],
                    "URL": url,
                    "SECRET_FILE": str(scene.folder / "ci-secret"),
                    "RUN": str(run),
                },
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr
    settle(scene.context, REPOSITORY)
    (made,) = scene.bisections()
    assert made["request"]["criterion"]["kind"] == "out_of_memory"


def test_a_report_may_name_ends_profile_and_overrides(scene: NightlyScene) -> None:
    scene.report(commit=BAD, good="v0.3.0", profile=PROFILE, overrides={"train.micro_batch_size": 2})
    settle(scene.context, REPOSITORY)
    request = scene.bisections()[0]["request"]
    assert (request["good"], request["overrides"]) == ("v0.3.0", {"train.micro_batch_size": 2})


def test_a_log_of_any_bytes_is_taken(scene: NightlyScene) -> None:
    name = scene.report(commit=BAD, good=GOOD, log="\0\ud800\x1b[31m" + crash_log("a\0b")).json()["delivery"]
    assert decisions(scene.settled(name.rpartition("/")[2])) == {"perf": "started"}


def test_a_repeated_report_is_known_by_its_id(scene: NightlyScene) -> None:
    assert scene.report(commit=BAD, good=GOOD).json()["decision"] == "accepted"
    assert scene.report(commit=BAD, good=GOOD).json()["decision"] == "duplicate"
    settle(scene.context, REPOSITORY)
    assert len(scene.bisections()) == 1


@pytest.mark.parametrize("seconds", [-400, 400])
def test_a_report_that_somebody_recorded_is_refused(scene: NightlyScene, seconds: int) -> None:
    answer = scene.report(commit=BAD, good=GOOD, when=time.time() + seconds)
    assert answer.status_code == 401
    assert "clock" in answer.json()["detail"]


def test_a_report_with_another_secret_or_for_an_unknown_repository_is_refused_alike(
    scene: NightlyScene,
) -> None:
    (scene.folder / "ci-secret").write_bytes(b"another\nand one more")
    assert scene.report(commit=BAD).status_code == 401
    unknown = scene.service.anonymous.post("/v1/webhooks/ci/nothing", content=b"{}")
    assert unknown.status_code == 401


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"commit": "main"}, 422),
        ({"commit": BAD, "profile": "gone"}, 422),
        ({"commit": BAD, "profile": "elsewhere"}, 422),
        ({"commit": BAD, "good": "--upload-pack=x"}, 422),
        ({"commit": BAD, "surprise": 1}, 422),
        ({"commit": BAD, "job": "a\0b"}, 422),
        ({"commit": BAD, "branch": "\ud800"}, 422),
        ({"commit": BAD, "log": "x" * 200_001}, 422),
    ],
)
def test_a_report_that_cannot_be_used_is_refused_with_the_field(
    scene: NightlyScene, fields: dict[str, Any], status: int
) -> None:
    answer = scene.report(**fields)
    assert answer.status_code == status, answer.text
    assert Deliveries(scene.database).page(limit=1) == []


def test_branches_and_jobs_that_are_not_listed_are_ignored(scene: NightlyScene) -> None:
    scene.write(ci={"jobs": [{"job": "qwen3-vl-*"}]})
    assert scene.report(commit=BAD).json()["decision"] == "ignored"
    assert scene.report(commit=BAD, recipe="qwen3-vl-30b", branch="topic").json()["decision"] == "ignored"
    assert scene.report(commit=BAD, recipe="qwen3-vl-30b").json()["decision"] == "accepted"
