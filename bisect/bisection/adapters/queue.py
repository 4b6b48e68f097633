"""The hints that wake workers: Celery over Redis or Valkey.

A message is only a hint. It names no decision and carries no data; what is to be
done stands in the database, and the reconciler sends again whatever was lost. So
losing the broker with all it holds loses nothing.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Protocol

from celery import Celery
from kombu.exceptions import OperationalError

CONTROL = "control"
ADVANCE = "firstbad.advance"
WORK = "firstbad.work"
SETTLE = "firstbad.settle"
ANNOUNCE = "firstbad.announce"
_BURST_SECONDS = 1.0


def make_celery(broker_url: str, broker_ca: Path | None = None) -> Celery:
    """The Celery application; workers add their tasks to it, the service only sends.

    Each setting below is one that survived kill -9 of worker, child and broker;
    the defaults lose or double messages (visibility timeout, prefetch, early ack).
    A rediss:// broker has to show a certificate for its name that ``broker_ca`` vouches for, or the system.
    """
    application = Celery("firstbad", broker=broker_url, set_as_current=False)
    if broker_url.startswith("rediss://"):
        # Said in so many words, whatever the defaults of Celery, kombu and redis come to be.
        application.conf.broker_use_ssl = {
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
            "ssl_check_hostname": True,
            **({"ssl_ca_certs": str(broker_ca)} if broker_ca else {}),
        }
    application.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_queue=CONTROL,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": 86_400,
            "socket_timeout": 5,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
        },
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
    )
    return application


class Hints(Protocol):
    """Wakes whoever has something to do now; True if the hint was taken."""

    def advance(self, bisection_id: str) -> bool: ...
    def work(self, queue: str) -> bool: ...
    def settle(self, repository: str) -> bool: ...
    def announce(self, announcement_id: str) -> bool: ...
    def is_reachable(self) -> bool: ...


class Queue:
    """Sends hints; a broker that is away is no error, since the reconciler sends them again."""

    def __init__(self, application: Celery) -> None:
        self._application = application
        self._settled_at: dict[str, float] = {}

    def advance(self, bisection_id: str) -> bool:
        """Wake a control worker for one bisection; False if the broker did not take it."""
        return self._send(ADVANCE, [bisection_id], CONTROL)

    def work(self, queue: str) -> bool:
        """Say that a pool's queue has a trial to run."""
        return self._send(WORK, [queue], queue)

    def settle(self, repository: str) -> bool:
        """Say that a CI reported something of a repository.

        One hint stands for all that is stored: of a burst of reports only one a second is sent, and what
        comes after a worker has looked is found by the reconciler.
        """
        now = time.monotonic()
        if now - self._settled_at.get(repository, -_BURST_SECONDS) < _BURST_SECONDS:
            return True
        self._settled_at[repository] = now
        return self._send(SETTLE, [repository], CONTROL)

    def announce(self, announcement_id: str) -> bool:
        """Say that a result is to be told somewhere."""
        return self._send(ANNOUNCE, [announcement_id], CONTROL)

    def is_reachable(self) -> bool:
        """Whether the broker takes a connection now. For people to look at; nothing depends on it."""
        try:
            with self._application.connection_for_write(connect_timeout=1) as connection:
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=1)
        except (OperationalError, OSError):
            return False
        return True

    def _send(self, task: str, arguments: list[str], queue: str) -> bool:
        try:
            self._application.send_task(task, args=arguments, queue=queue)
        except (OperationalError, OSError):
            return False
        return True
