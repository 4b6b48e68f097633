"""REST: what an operator registered, which workers are alive, and what they do."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from bisection.adapters.catalogue import NotRegistered
from bisection.adapters.storage.pools import Pools
from service import problems
from service.access import Reader
from service.bisections import UsesParts
from service.problem_responses import document
from service.problems import Problem
from service.registry_shapes import (
    PoolList,
    ProfileList,
    ProfileView,
    RepositoryList,
    RepositoryView,
    WorkerList,
    show_pools,
    show_profile,
    show_repository,
    show_worker,
)

router = APIRouter(prefix="/v1", tags=["registry"])

_CATALOGUE = document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.BAD_CATALOGUE)
_ONE = document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.NOT_FOUND, problems.BAD_CATALOGUE)
_Name = Annotated[str, Path(description="As the list has it.")]


@router.get(
    "/profiles",
    operation_id="listProfiles",
    summary="List the profiles",
    response_model=ProfileList,
    responses=_CATALOGUE,
)
def list_profiles(_caller: Reader, parts: UsesParts) -> ProfileList:
    """The training jobs that a request can name."""
    return ProfileList(items=[show_profile(profile) for profile in parts.catalogue.profiles()])


@router.get(
    "/profiles/{name}",
    operation_id="getProfile",
    summary="Read one profile",
    response_model=ProfileView,
    responses=_ONE,
)
def get_profile(_caller: Reader, name: _Name, parts: UsesParts) -> ProfileView:
    """What a trial of it is; commands, paths and environments stay the operator's."""
    try:
        return show_profile(parts.catalogue.profile(name))
    except NotRegistered as error:
        raise _unknown(error) from None


@router.get(
    "/repositories",
    operation_id="listRepositories",
    summary="List the repositories",
    response_model=RepositoryList,
    responses=_CATALOGUE,
)
def list_repositories(_caller: Reader, parts: UsesParts) -> RepositoryList:
    """The repositories that can be bisected."""
    profiles = parts.catalogue.profiles()
    return RepositoryList(
        items=[show_repository(entry, profiles) for entry in parts.catalogue.repositories()]
    )


@router.get(
    "/repositories/{name}",
    operation_id="getRepository",
    summary="Read one repository",
    response_model=RepositoryView,
    responses=_ONE,
)
def get_repository(_caller: Reader, name: _Name, parts: UsesParts) -> RepositoryView:
    """What it pins, and which training jobs are its."""
    try:
        return show_repository(parts.catalogue.repository(name), parts.catalogue.profiles())
    except NotRegistered as error:
        raise _unknown(error) from None


@router.get(
    "/workers",
    operation_id="listWorkers",
    summary="List the workers",
    response_model=WorkerList,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN),
)
def list_workers(_caller: Reader, parts: UsesParts) -> WorkerList:
    """Those that were seen within the last half minute, and what each runs. A queue without one waits."""
    running = Pools(parts.database).running()
    return WorkerList(items=[show_worker(row, running) for row in parts.roster.alive()])


@router.get(
    "/pools",
    operation_id="listPools",
    summary="List the queues",
    response_model=PoolList,
    responses=_CATALOGUE,
)
def list_pools(_caller: Reader, parts: UsesParts) -> PoolList:
    """How many trials wait and run in each queue, since when, and how many workers serve it."""
    loads = Pools(parts.database).loads()
    return PoolList(items=show_pools(loads, parts.roster.alive(), parts.catalogue.profiles()))


def _unknown(error: NotRegistered) -> Problem:
    return Problem(problems.NOT_FOUND, f"{error}.", repair="Use a name of the list.")
