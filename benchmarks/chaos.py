"""What kills, freezes, cuts and losses do to running bisections: nothing may be lost, wrong or counted twice.

usage: python -m benchmarks.chaos [--bisections 50] [--faults 500] [--seed 1] [--database sqlite] [--json]

All of it is real: `firstbad up` with its API, its broker and several workers as processes, SQLite or a
PostgreSQL server, a repository in git, trials that run a small script of a few tenths of a second. First each
question is asked undisturbed; then all are asked while faults are made (`chaos_faults`). It ends when every
bisection has ended, or when nothing has ended for ten minutes.

- lost: bisections that were accepted and did not end, or are not there;
- wrong: findings that are not those of the undisturbed run, and measurements that are not what the file at
  their commit says;
- doubled: bisections made twice by one request, and runs or trials that were counted twice;
- orphans: processes of trials that live though no trial runs, and any process after the end.

As root, the process takes a network and mounts of its own, for cuts and a small disk; elsewhere these two
faults are left out.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import chaos_machine
from benchmarks.chaos_faults import Faults
from benchmarks.chaos_scene import RUN, Question, Scene, make_questions, wait_for

DISTINCT = 8  #: questions; further bisections ask one of them again
_MOST_OPEN = 6
#: Mean pause between faults. A busy machine gets them more slowly: after one, either a trial ends or some
#: seconds pass, for nothing is learned of processes that never come to do anything. A start may be hit, too.
_FAULT_SECONDS, _QUIET_SECONDS, _START_SECONDS = 1.2, 6.0, 20.0
_STUCK_SECONDS = 600.0
_ORPHAN_SECONDS = 30.0
Answer = tuple[str, tuple[str, ...], str]


class Asking:
    """Asks questions of a scene, and knows what was answered."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self._name = name
        self.asked: list[tuple[Question, str]] = []
        self.ended: set[str] = set()
        self.measured = 0  #: trials
        self.ended_at = time.monotonic()

    def ask(self, question: Question) -> None:
        """Once; where nobody accepts it, the next try has the same key, so that it is accepted once."""
        key = f"{self._name}-{len(self.asked)}"
        with suppress(Exception), self._scene.client() as client:  # what is broken answers as it can
            made = client.create(question.request, idempotency_key=key)["id"]
            self.asked.append((question, made))

    def look(self) -> None:
        """Which have ended by now."""
        with suppress(Exception):  # the database is away just now
            rows = self._scene.rows("SELECT id FROM bisections WHERE status = 'ended'")
            ended = {row.id for row in rows} & {bisection for _, bisection in self.asked}
            if ended != self.ended:
                self.ended, self.ended_at = ended, time.monotonic()
            self.measured = self._scene.rows("SELECT count(*) AS n FROM trials WHERE status = 'done'")[0].n

    @property
    def open(self) -> int:
        return len(self.asked) - len(self.ended)

    @property
    def stuck(self) -> bool:
        return time.monotonic() - self.ended_at > _STUCK_SECONDS


def undisturbed(scene: Scene, questions: Sequence[Question]) -> dict[str, Answer]:
    """The answer to each question, by its name."""
    asking = Asking(scene, "undisturbed")
    while (asking.open or len(asking.asked) < len(questions)) and not asking.stuck:
        if len(asking.asked) < len(questions):
            asking.ask(questions[len(asking.asked)])
        else:
            time.sleep(0.5)
        asking.look()
    answers = {question.name: answer_of(scene, bisection) for question, bisection in asking.asked}
    unanswered = [name for name, answer in answers.items() if answer is None]
    if unanswered:
        raise RuntimeError(f"no answer even without faults: {unanswered}")
    return {name: answer for name, answer in answers.items() if answer is not None}


def disturbed(
    scene: Scene, questions: Sequence[Question], arguments: argparse.Namespace, faults: Faults, random: Random
) -> Asking:
    """Ask as many while faults are made; the questions are spread over the faults."""
    bisections, wanted = arguments.bisections, arguments.faults
    started = time.monotonic()
    asking = Asking(scene, "disturbed")
    next_fault = time.monotonic() + 1
    measured = told = 0
    while (asking.open or len(asking.asked) < bisections or faults.count < wanted) and not asking.stuck:
        scene.ensure_up()
        faults.relieve()
        asking.look()
        due = min(bisections, 1 + faults.count * bisections // wanted) if wanted else bisections
        if len(asking.asked) < max(due, min(bisections, 2)) and asking.open < _MOST_OPEN:
            asking.ask(questions[len(asking.asked) % len(questions)])
        if faults.count < wanted and time.monotonic() >= next_fault:
            waited = time.monotonic() - next_fault
            unmoved = asking.open and asking.measured == measured and waited < _QUIET_SECONDS
            if unmoved or (waited < _START_SECONDS and not scene.answers):
                time.sleep(0.1)
                continue
            measured = asking.measured
            faults.make_one()
            next_fault = time.monotonic() + random.expovariate(1 / _FAULT_SECONDS)
        if faults.count >= told + 25:
            told = faults.count
            say(f"{faults.count} faults, {len(asking.asked)} asked, {len(asking.ended)} ended")
        if time.monotonic() - started > arguments.seconds:
            bisections, wanted = len(asking.asked), faults.count
        time.sleep(0.1)
    faults.relieve(all_of_them=True)
    wait_for(scene, lambda: scene.client().get(asking.asked[0][1]))
    return asking


def answer_of(scene: Scene, bisection: str) -> Answer | None:
    """Kind, commits and problem of the finding as the report says them; None if it has not ended."""
    with scene.client() as client:
        row = client.get(bisection)
        if row["status"] != "ended":
            return None
        finding = client.report(bisection, "json")["finding"]
    return finding["kind"], tuple(sorted(finding["commits"])), finding.get("problem") or ""


def lost_and_wrong(
    scene: Scene, asking: Asking, answers: Mapping[str, Answer], truth: Mapping[str, Any]
) -> tuple[int, int]:
    lost = wrong = 0
    for question, bisection in asking.asked:
        answer = answer_of(scene, bisection)
        if answer is None:
            lost += 1
            say(f"LOST {bisection}: {question}")
        elif answer != answers[question.name]:
            wrong += 1
            say(f"WRONG {bisection}: {answer} instead of {answers[question.name]}, {question}")
    for row in scene.rows("SELECT id, measurement FROM trials WHERE sequence IS NOT NULL"):
        measured = _json(row.measurement)
        plan = truth.get(measured["state"]["commit"])
        if plan is not None and not _fits(measured, plan):
            wrong += 1
            say(f"WRONG trial {row.id}: {measured['outcome']} ({measured['reason']}), the file says {plan}")
    return lost, wrong


def _fits(measured: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    outcome, peak = measured["outcome"], measured.get("peak") or {}
    if outcome == "lost":
        return True  # it was run again
    if "breaks" in plan:
        return outcome == "crashed" and "RuntimeError" in measured["reason"]  # its message is withheld
    return outcome in ("completed", "out_of_memory") and peak.get("allocated_bytes") == plan["bytes"]


def doubled(scene: Scene, bisections: int) -> int:
    """Each count is of what exists more often than once."""
    faults = []
    made = scene.rows("SELECT count(*) AS n FROM bisections")[0].n
    if made > bisections:
        faults.append(f"{made - bisections} bisections that nobody asked for")
    runs: Counter[str] = Counter()
    places: Counter[tuple[str, int]] = Counter()
    states: Counter[tuple[str, str]] = Counter()
    for row in scene.rows(
        "SELECT bisection_id, key, sequence, measurement FROM trials WHERE sequence IS NOT NULL"
    ):
        runs.update(note for note in _json(row.measurement)["notes"] if note.startswith(RUN))
        places[row.bisection_id, row.sequence] += 1
        states[row.bisection_id, row.key] += 1
    last = {name: max(n for of, n in places if of == name) for name, _ in places}
    counted = Counter(bisection for bisection, _ in places)
    faults += [f"gap in the ledger of {name}" for name, n in last.items() if counted[name] != n + 1]
    ends: Counter[str] = Counter(
        _json(row.payload)["trial"]
        for row in scene.rows("SELECT payload FROM events WHERE kind = 'trial_ended'")
    )
    for counter in (runs, places, states, ends):
        faults += [f"{n} times: {what}" for what, n in counter.items() if n > 1]
    for fault in faults:
        say(f"DOUBLED {fault}")
    return len(faults)


def _json(value: Any) -> Any:
    """A JSON column as SQLite (text) or PostgreSQL (parsed) gives it to a plain query."""
    return json.loads(value) if isinstance(value, str) else value


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    network, mounts = chaos_machine.isolate()
    random = Random(arguments.seed)
    started = time.monotonic()
    with Scene(arguments.database, folder, mounts=mounts) as scene:
        questions, truth = make_questions(scene.training, random, min(DISTINCT, arguments.bisections))
        answers = undisturbed(scene, questions)
        say(f"undisturbed after {time.monotonic() - started:.0f} s: {answers}")
        faults = Faults(scene, random, network=network)
        asking = disturbed(scene, questions, arguments, faults, random)
        lost, wrong = lost_and_wrong(scene, asking, answers, truth)
        counted_twice = doubled(scene, len(questions) + len(asking.asked))
        wait_for(scene, lambda: not scene.processes("trial"), _ORPHAN_SECONDS)
        orphans = len(scene.processes("trial"))
        claims = scene.rows("SELECT claim, count(*) AS n FROM trials GROUP BY claim ORDER BY claim")
        say(f"trials by number of claims: {[tuple(row) for row in claims]}")
        say(f"`up` ended by itself {dict(scene.ended_by_itself)} (times by exit code)")
        installation = scene.installation
        installation.down()
        wait_for(scene, lambda: not installation.processes(), 10) if installation.processes() else None
        orphans += len(installation.processes())
        for pid, command in installation.processes().items():
            say(f"ORPHAN {pid}: {command}")
    for name, times in sorted((faults.made + faults.reached).items()):
        say(f"{times:6} {name}")
    return {
        "bisections": len(asking.asked),
        "faults": faults.count,
        "lost": lost,
        "wrong": wrong,
        "doubled": counted_twice,
        "orphans": orphans,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bisections", type=int, default=50)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=7200.0, help="then neither asks nor breaks any more")
    parser.add_argument("--folder", type=Path, help="kept afterwards, to look at the logs")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is stopped on the way out
    with tempfile.TemporaryDirectory(prefix="firstbad-chaos-") as folder:
        result = run(arguments, arguments.folder or Path(folder))
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:12}{value:>10}")
    sys.exit(any(result[name] for name in ("lost", "wrong", "doubled", "orphans")))


if __name__ == "__main__":
    main()
