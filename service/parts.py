"""What an application is made of, and how an endpoint gets at it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from fastapi import Request

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.queue import Hints
from bisection.adapters.storage.artifacts import Artifacts
from bisection.adapters.storage.bisections import Bisections
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.roster import Roster
from bisection.adapters.storage.summaries import Summaries
from bisection.adapters.storage.trials import Trials
from service.progress_pictures import ProgressPictures
from service.request_limits import Buckets
from service.settings import ServiceSettings


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The adapters that `create_app` was given."""

    database: Database
    queue: Hints
    catalogue: Catalogue
    settings: ServiceSettings

    @cached_property
    def bisections(self) -> Bisections:
        return Bisections(self.database)

    @cached_property
    def summaries(self) -> Summaries:
        return Summaries(self.database)

    @cached_property
    def buckets(self) -> Buckets:
        settings = self.settings
        return Buckets(per_second=settings.requests_per_second, burst=settings.request_burst)

    @cached_property
    def trials(self) -> Trials:
        return Trials(self.database)

    @cached_property
    def artifacts(self) -> Artifacts:
        return Artifacts(self.database)

    @cached_property
    def roster(self) -> Roster:
        return Roster(self.database)

    @cached_property
    def pictures(self) -> ProgressPictures:
        return ProgressPictures()


async def parts_of(request: Request) -> Parts:
    """A dependency: the parts of the application that serves this request.

    It is awaited, though it waits for nothing: a plain function would be sent through a thread each time.
    """
    return cast(Parts, request.app.state.parts)


async def body_of(request: Request) -> bytes:
    """A dependency: the raw body, for endpoints that run in a thread and cannot await it."""
    return await request.body()
