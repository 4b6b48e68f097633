"""The database under contention and after crashes: nothing is lost, nothing counts twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from bisection.adapters.storage import claims as claims_module
from bisection.adapters.storage import database as database_module
from bisection.adapters.storage.artifacts import Artifacts
from bisection.adapters.storage.bisections import (
    Bisections,
    IdempotencyConflict,
    Status,
    append_event,
)
from bisection.adapters.storage.claims import Beat, Claim, Claims
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.deliveries import Deliveries
from bisection.adapters.storage.measurements import Measured, Measurements, TakenOver
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.summaries import Filter, Summaries
from bisection.adapters.storage.tokens import Scope, Tokens
from bisection.adapters.storage.trials import Trials
from bisection.commits import Commit, CommitRange, State
from bisection.criteria import Criterion, CriterionKind
from bisection.finding import Finding, FindingKind
from bisection.ledger import Purpose, Trial
from bisection.measurement import Measurement, Outcome
from bisection.specification import BisectionSpec
from tests.postgresql import PostgreSQL

GOOD, BAD = "a" * 40, "b" * 40
SPEC = BisectionSpec(
    range=CommitRange(commits=(Commit(hash=GOOD), Commit(hash=BAD, parents=(GOOD,)))),
    criterion=Criterion(kind=CriterionKind.OUT_OF_MEMORY, capacity_bytes=2**30),
)
REQUEST = {"profile": "p", "good": "a", "bad": "b"}


def trial(commit: str = BAD, attempt: int = 1, avoid: tuple[str, ...] = ()) -> Trial:
    return Trial(state=State(commit=commit), attempt=attempt, purpose=Purpose.END, avoid_workers=avoid)


def measured(commit: str = BAD) -> Measurement:
    return Measurement(outcome=Outcome.COMPLETED, state=State(commit=commit))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def running(database: Database) -> str:
    """Id of a bisection whose search may add trials; its version is 1."""
    bisections = Bisections(database)
    row, _ = bisections.create(request=REQUEST, profile={}, source="api")
    assert bisections.resolve(row.id, SPEC, {}, preview=False)
    return row.id


def claimed(claims: Claims, worker: str = "w1") -> Claim:
    claim = claims.claim("pool", worker)
    assert claim is not None
    return claim


def test_migrating_twice_changes_nothing(database: Database) -> None:
    database.migrate()
    assert Summaries(database).page(limit=10) == []


def test_the_same_idempotency_key_gives_the_same_bisection(database: Database) -> None:
    bisections = Bisections(database)
    first, new = bisections.create(request=REQUEST, profile={}, source="api", idempotency_key="k")
    again, renewed = bisections.create(request=REQUEST, profile={}, source="api", idempotency_key="k")
    assert (new, renewed) == (True, False)
    assert first.id == again.id


def test_an_idempotency_key_for_another_request_is_refused(database: Database) -> None:
    bisections = Bisections(database)
    bisections.create(request=REQUEST, profile={}, source="api", idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="send a new key"):
        bisections.create(request={**REQUEST, "bad": "c"}, profile={}, source="api", idempotency_key="k")


def test_a_failure_has_one_open_bisection_and_a_new_one_after_it_ended(
    database: Database,
) -> None:
    bisections = Bisections(database)
    first, _ = bisections.create(request=REQUEST, profile={}, source="hook", failure_key="f")
    attached, new = bisections.create(request=REQUEST, profile={}, source="hook", failure_key="f")
    assert not new
    assert attached.id == first.id
    bisections.conclude(first.id, Finding(kind=FindingKind.NONE, why="flake"))
    bisections.finish(first.id, {})
    later, new = bisections.create(request=REQUEST, profile={}, source="hook", failure_key="f")
    assert new
    assert later.id != first.id


def test_a_decision_made_on_an_old_view_is_not_written(database: Database, running: str) -> None:
    trials = Trials(database)
    version = Bisections(database).get(running).version
    assert trials.apply(running, version, queue="pool", add=[trial()])
    assert not trials.apply(running, version, queue="pool", add=[trial(GOOD)])
    assert [row.trial for row in trials.of(running)] == [trial()]


def test_a_trial_is_claimed_by_exactly_one_of_many_workers(database: Database, running: str) -> None:
    trials = Trials(database)
    trials.apply(running, 1, queue="pool", add=[trial()])
    storage, claims = Claims(database), list[Claim | None]()
    threads = [
        threading.Thread(target=lambda i=i: claims.append(storage.claim("pool", f"w{i}"))) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([claim for claim in claims if claim]) == 1


def test_a_worker_that_thaws_after_its_lease_writes_nothing(
    database: Database, running: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(database)
    trials.apply(running, 1, queue="pool", add=[trial()])
    monkeypatch.setattr(claims_module, "LEASE_SECONDS", -1.0)
    frozen = claimed(Claims(database), "frozen")
    monkeypatch.undo()
    assert [claim.trial_id for claim in Claims(database).expired()] == [frozen.trial_id]
    successor = claimed(Claims(database), "other")
    assert successor.fence == frozen.fence + 1
    assert Claims(database).beat(frozen) is Beat.FENCED
    assert not Claims(database).complete(frozen, measured(), {"log": b"stale"})
    assert Claims(database).complete(successor, measured(), {"log": b"fresh"})
    rows = trials.of(running)
    assert len(Trials.ledger(rows)) == 1
    assert Artifacts(database).content(successor.trial_id, "log") == b"fresh"


def test_a_measurement_is_written_once_and_in_order_of_arrival(database: Database, running: str) -> None:
    trials = Trials(database)
    trials.apply(running, 1, queue="pool", add=[trial(GOOD), trial(BAD)])
    first, second = claimed(Claims(database), "w1"), claimed(Claims(database), "w2")
    assert Claims(database).complete(second, measured(BAD), {})
    assert Claims(database).complete(first, measured(GOOD), {})
    assert not Claims(database).complete(first, measured(GOOD), {})
    ledger = Trials.ledger(trials.of(running))
    assert [entry.sequence for entry in ledger] == [0, 1]
    assert [entry.measurement.state.commit for entry in ledger] == [BAD, GOOD]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_host_with_a_wrong_clock_takes_no_trial_away_and_loses_none(
    database: Database, running: str, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    Trials(database).apply(running, 1, queue="pool", add=[trial()])
    claims, honest = Claims(database), time.time
    claim = claimed(claims)
    monkeypatch.setattr(time, "time", lambda: honest() + hours * 3600)
    assert claims.claim("pool", "w2") is None
    assert claims.expired() == []
    assert claims.beat(claim) is Beat.CONTINUE
    monkeypatch.undo()
    assert claims.claim("pool", "w2") is None


def test_a_lease_from_before_the_clock_went_back_keeps_no_trial_from_the_living(
    database: Database, running: str
) -> None:
    Trials(database).apply(running, 1, queue="pool", add=[trial()])
    claims = Claims(database)
    claimed(claims)
    with database.write() as connection:
        connection.execute(text("UPDATE trials SET lease_until = lease_until + 3600"))
    assert [claim.fence for claim in claims.expired()] == [1]
    assert claimed(claims, "w2").fence == 2


def test_a_worker_that_is_gone_within_a_transaction_holds_up_nobody_for_long(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_IDLE_SECONDS", 1)
    url = postgresql.migrated_database()
    gone, living = Database(url), Database(url)
    row, _ = Bisections(living).create(request=REQUEST, profile={}, source="api")

    def freeze() -> None:
        with gone.write() as connection:
            append_event(connection, row.id, "note", {})
            Bisections(living).note(row.id, "note", {})  # waits until the server has given up the other one

    with pytest.raises(DBAPIError):
        freeze()
    assert [event.kind for event in Bisections(living).events(row.id)] == ["created", "note"]
    gone.close()
    living.close()


def test_a_trial_is_left_to_another_worker_as_long_as_one_lives(database: Database, running: str) -> None:
    roster, claims = Roster(database), Claims(database)
    roster.seen("w1", "pool")
    roster.seen("w2", "pool")
    Trials(database).apply(running, 1, queue="pool", add=[trial(avoid=("w1",))])
    assert claims.claim("pool", "w1") is None
    roster.left("w2")
    roster.seen("w3", "elsewhere")
    assert claimed(claims, "w1").trial.avoid_workers == ("w1",)


def test_a_cancelled_trial_is_told_so_at_the_next_heartbeat(database: Database, running: str) -> None:
    trials = Trials(database)
    trials.apply(running, 1, queue="pool", add=[trial()])
    claim = claimed(Claims(database))
    assert Claims(database).beat(claim, "step 1") is Beat.CONTINUE
    trials.cancel_all(running)
    assert Claims(database).beat(claim) is Beat.CANCELLED
    assert not Claims(database).complete(claim, measured(), {})


def test_a_cancelled_trial_that_is_wanted_after_all_is_queued_again(database: Database, running: str) -> None:
    trials = Trials(database)
    assert trials.apply(running, 1, queue="pool", add=[trial()])
    cancelled = claimed(Claims(database))
    assert trials.apply(running, 2, queue="pool", cancel=[trial()])
    assert trials.apply(running, 3, queue="pool", add=[trial()])
    assert Claims(database).beat(cancelled) is Beat.FENCED
    again = claimed(Claims(database), "other")
    assert not Claims(database).complete(cancelled, measured(), {})
    assert Claims(database).complete(again, measured(), {})
    assert len(trials.of(running)) == 1


def test_what_a_job_writes_costs_no_measurement(database: Database, running: str) -> None:
    trials = Trials(database)
    trials.apply(running, 1, queue="pool", add=[trial()])
    claim = claimed(Claims(database))
    assert Claims(database).beat(claim, "step 1\0 \ud800") is Beat.CONTINUE
    odd = measured().evolve(reason="half a pair: \ud800, \0", notes=("\0",))
    assert Claims(database).complete(claim, odd, {"log.txt": b"\0"})
    (row,) = trials.of(running)
    assert row.progress == "step 1\ufffd \ufffd"
    assert row.measurement is not None
    assert row.measurement.reason.startswith("half a pair: ")


def test_a_trial_that_is_handed_back_is_run_by_the_next_worker(database: Database, running: str) -> None:
    trials = Trials(database)
    trials.apply(running, 1, queue="pool", add=[trial()])
    claim = claimed(Claims(database), "leaving")
    Claims(database).hand_back(claim)
    assert claimed(Claims(database), "staying").fence == claim.fence + 1


def test_events_are_read_after_the_last_one_seen(database: Database, running: str) -> None:
    bisections = Bisections(database)
    everything = bisections.events(running)
    assert [event.kind for event in everything] == ["created", "resolved"]
    assert bisections.events(running, after=everything[0].id) == everything[1:]


def test_no_event_appears_below_one_that_was_read_already(database: Database, running: str) -> None:
    bisections = Bisections(database)
    with database.write() as connection:
        append_event(connection, running, "slow", {})
        beside = threading.Thread(target=bisections.note, args=(running, "quick", {}))
        beside.start()
        beside.join(timeout=0.5)
        seen = bisections.events(running)
    beside.join()
    later = bisections.events(running, after=seen[-1].id)
    assert [event.kind for event in later] == ["slow", "quick"]


def test_pages_are_newest_first_and_do_not_overlap(database: Database) -> None:
    bisections = Bisections(database)
    made = [bisections.create(request={**REQUEST, "n": n}, profile={}, source="api")[0] for n in range(5)]
    summaries = Summaries(database)
    first = summaries.page(limit=3)
    rest = summaries.page(limit=3, before=(first[-1].created_at, first[-1].id))
    assert [row.id for row in first + rest] == [row.id for row in reversed(made)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Filter(), "cba"),
        (Filter(statuses=[Status.ENDED]), ""),
        (Filter(statuses=[Status.ENDED, Status.RESOLVING]), "cba"),
        (Filter(repository="lm"), "b"),
        (Filter(profile="p_c"), "c"),
        (Filter(profile="p__"), ""),
        (Filter(source="token:"), "ba"),
        (Filter(source="%"), ""),
        (Filter(ancestor="1234"), "c"),
        (Filter(text="RELEASE_b"), "b"),
        (Filter(text="grün"), "c"),
        (Filter(text="%"), ""),
    ],
)
def test_a_list_is_filtered_by_what_was_asked_and_by_whom(
    database: Database, wanted: Filter, found: str
) -> None:
    bisections = Bisections(database)
    for name, more in (
        ("a", {}),
        ("b", {"repository": "lm", "bad": "release_b"}),
        ("c", {"ancestor": {"bisection": "1234"}, "good": "grün"}),
    ):
        request = {"profile": f"p_{name}", "repository": "bridge", "good": "v1", "bad": "main", **more}
        bisections.create(request=request, profile={}, source="github:c" if name == "c" else f"token:{name}")
    rows = Summaries(database).page(limit=9, wanted=wanted)
    assert "".join(row.request["profile"][-1] for row in rows) == found


def test_a_delivery_is_first_only_once(database: Database) -> None:
    deliveries = Deliveries(database)
    assert deliveries.store("d1", "workflow_run", "training", None)
    assert not deliveries.store("d1", "workflow_run", "training", None)


def test_a_revoked_token_opens_nothing(database: Database) -> None:
    tokens = Tokens(database)
    token = tokens.issue("nightly", frozenset({Scope.WRITE}))
    caller = tokens.caller(token)
    assert caller is not None
    assert caller.may(Scope.WRITE)
    assert not caller.may(Scope.READ)
    assert tokens.revoke(caller.id)
    assert tokens.caller(token) is None


def test_a_worker_that_left_does_not_count_as_alive(database: Database) -> None:
    roster = Roster(database)
    roster.seen("w1", "pool")
    roster.seen("w2", "control")
    assert [worker.name for worker in roster.alive("pool")] == ["w1"]
    roster.left("w1")
    assert roster.alive("pool") == []


# --- measurements across bisections ------------------------------------------------------------------

KEY = "c" * 64


def another(database: Database) -> str:
    """Id of a second bisection that runs; its version is 1."""
    bisections = Bisections(database)
    row, _ = bisections.create(request={**REQUEST, "seed": 2}, profile={}, source="api")
    assert bisections.resolve(row.id, SPEC, {}, preview=False)
    return row.id


def measure(database: Database, bisection_id: str, attempt: int = 1) -> None:
    """One finished trial with the key, by worker w1, with an artifact."""
    version = Bisections(database).get(bisection_id).version
    added = Trials(database).apply(
        bisection_id, version, queue="pool", add=[trial(attempt=attempt)], reuse_key=lambda _: KEY
    )
    assert added
    claims = Claims(database)
    assert claims.complete(claimed(claims), measured().evolve(worker="w1"), {"config.json": b"{}"})


def taken(source: Measured, attempt: int = 1) -> TakenOver:
    return TakenOver(source=source, trial=replace(trial(attempt=attempt), taken_from="somewhere/1"))


def test_a_measurement_is_found_and_taken_over_once_with_what_it_left(
    database: Database, running: str
) -> None:
    store, here = Measurements(database), another(database)
    measure(database, running)
    assert store.of_others(running, [KEY], since="") == []  # its own are in its ledger already
    (found,) = store.of_others(here, [KEY], since="")
    assert store.take_over(here, 1, [taken(found)])
    assert store.of_others(here, [KEY], since="") == []
    (row,) = Trials(database).of(here)
    assert (row.sequence, row.status, row.worker) == (0, "done", "w1")
    assert Artifacts(database).content(row.id, "config.json") == b"{}"
    with pytest.raises(IntegrityError):
        store.take_over(here, 2, [taken(found, attempt=2)])
    assert len(Trials(database).of(here)) == 1
    assert Bisections(database).get(here).version == 2


def test_what_was_taken_over_is_never_passed_on(database: Database, running: str) -> None:
    store, second = Measurements(database), another(database)
    measure(database, running)
    (found,) = store.of_others(second, [KEY], since="")
    store.take_over(second, 1, [taken(found)])
    row, _ = Bisections(database).create(request={**REQUEST, "seed": 3}, profile={}, source="api")
    assert [one.bisection_id for one in store.of_others(row.id, [KEY], since="")] == [running]


def test_taking_over_on_an_old_view_writes_nothing(database: Database, running: str) -> None:
    store, here = Measurements(database), another(database)
    measure(database, running)
    (found,) = store.of_others(here, [KEY], since="")
    assert not store.take_over(here, 0, [taken(found)])
    assert Trials(database).of(here) == []


def test_what_is_old_or_retracted_is_not_found(database: Database, running: str) -> None:
    store, here = Measurements(database), another(database)
    measure(database, running)
    measure(database, running, attempt=2)
    assert len(store.of_others(here, [KEY], since="2020")) == 2
    assert store.of_others(here, [KEY], since="9999") == []
    assert store.retract(worker="another") == 0
    assert store.retract(worker="w1", key=KEY) == 2
    assert store.retract(key=KEY) == 0  # each is retracted once
    assert store.of_others(here, [KEY], since="2020") == []
    with pytest.raises(ValueError, match="name a worker or a key"):
        store.retract()


def test_a_database_of_the_release_before_keeps_its_ledger(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/old.sqlite")
    database.migrate("0002")
    with database.write() as connection:
        connection.exec_driver_sql(
            "INSERT INTO bisections VALUES ('b','t','t',NULL,'running',1,'{}','{}','api',NULL,NULL,NULL,NULL,"
            "0,NULL,'d',NULL)"
        )
        connection.exec_driver_sql(
            "INSERT INTO trials VALUES "
            "('t','b','k',0,?,'pool','done','t',0.0,NULL,1,'w1',NULL,NULL,'t','',0,?)",
            (json.dumps(trial().to_json()), json.dumps(measured().to_json())),
        )
    database.migrate()
    (row,) = Trials(database).of("b")
    assert (row.sequence, row.reuse_key, row.trial.taken_from) == (0, None, "")
    assert Measurements(database).retract(worker="w1") == 0
    database.close()
