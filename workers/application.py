"""A worker process: Celery with our tasks, one trial at a time, and steady beats.

The solo pool runs a task in the worker's own process: a trial is a subprocess tree
of its own anyway, and there is no fork that could copy a database connection.
"""

from __future__ import annotations

import threading
from typing import Any

import structlog
from celery import Celery
from celery.signals import worker_ready, worker_shutting_down
from structlog.contextvars import bound_contextvars

from bisection.adapters.queue import ADVANCE, ANNOUNCE, SETTLE, WORK
from workers import keeping
from workers.advancing import advance
from workers.announcing import announce
from workers.context import WorkerContext
from workers.keeping import remove_what_is_due
from workers.pool import Measure, work
from workers.pulse import Pulse
from workers.reconciling import SECONDS, reconcile
from workers.settling import settle
from workers.trial_run import sweep_trials

log = structlog.get_logger(__name__)

PRESENCE_SECONDS = 10.0


def run_worker(application: Celery, context: WorkerContext, measure: Measure | None = None) -> None:
    """Serve the context's queue until TERM or INT; a running trial is handed back.

    ``measure`` stands in for running trials really, where the queue alone is to be looked at.
    """
    leaving = threading.Event()

    def advance_one(bisection_id: str) -> None:
        with bound_contextvars(bisection=bisection_id, worker=context.name):
            advance(context, bisection_id)

    def work_once(_queue: str) -> None:
        work(context, leaving, measure)

    def settle_line(repository: str) -> None:
        settle(context, repository)

    def announce_one(announcement_id: str) -> None:
        announce(context, announcement_id)

    application.task(advance_one, name=ADVANCE)
    application.task(settle_line, name=SETTLE)
    application.task(announce_one, name=ANNOUNCE)
    application.task(work_once, name=WORK)
    beats = [Pulse("presence", PRESENCE_SECONDS, lambda: context.roster.seen(context.name, context.queue))]
    if context.serves_control:
        beats.append(Pulse("reconciler", SECONDS, lambda: reconcile(context)))
        beats.append(Pulse("remover", keeping.SECONDS, lambda: remove_what_is_due(context)))

    def on_ready(**_: Any) -> None:
        for beat in beats:
            beat.start()

    def on_shutdown(**_: Any) -> None:
        leaving.set()

    worker_ready.connect(on_ready, weak=False)
    worker_shutting_down.connect(on_shutdown, weak=False)
    sweep_trials(context.root / "trials")
    try:
        application.Worker(
            queues=[context.queue],
            pool="solo",
            concurrency=1,
            hostname=context.name,
            without_gossip=True,
            without_mingle=True,
            quiet=True,  # its banner is no line of a log
            loglevel="WARNING",
        ).start()
    finally:
        for beat in beats:
            beat.stop()
        context.roster.left(context.name)
