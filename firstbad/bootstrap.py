"""The composition root: settings in, the parts of a process out."""

from __future__ import annotations

import os
import re
import socket
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.tokens import Scope, Tokens
from firstbad.settings import Settings
from service.application import create_app
from service.settings import ServiceSettings
from workers.context import WorkerContext

_TOKEN = re.compile(r"fb_[A-Za-z0-9_-]{40,}")


def open_database(settings: Settings) -> Database:
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.database_url)
    database.migrate()
    return database


def open_queue(settings: Settings) -> Queue:
    return Queue(make_celery(settings.broker_url, settings.broker_ca))


def open_catalogue(settings: Settings) -> Catalogue:
    for folder in ("profiles", "repositories"):
        (settings.catalogue / folder).mkdir(parents=True, exist_ok=True)
    return Catalogue(settings.catalogue)


def worker_context(settings: Settings, queue: str, name: str) -> WorkerContext:
    return WorkerContext(
        name=f"{name}@{socket.gethostname()}",
        queue=queue,
        database=open_database(settings),
        hints=open_queue(settings),
        catalogue=open_catalogue(settings),
        root=settings.home,
        keeping=settings.keeping,
        public_url=settings.public_url,
    )


def make_api(settings: Settings) -> FastAPI:
    """The API of this home, reachable at the settings' port of the loopback address."""
    return create_app(
        database=open_database(settings),
        queue=open_queue(settings),
        catalogue=open_catalogue(settings),
        settings=ServiceSettings(
            public_url=settings.public_url or f"http://127.0.0.1:{settings.port}", version=version("firstbad")
        ),
    )


def operator_token(settings: Settings, database: Database) -> str:
    """The token of whoever runs `firstbad up`: made at the first start, readable by them alone."""
    path = settings.token_file
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        token = Tokens(database).issue("operator", frozenset({Scope.ADMIN}))
        _write_private(path, token + "\n")
        return token
    token = content.decode("ascii", errors="replace").strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(f"{path} holds no token; delete the file, and a new token is made")
    Tokens(database).register(token, "operator", frozenset({Scope.ADMIN}))
    return token


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
