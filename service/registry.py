"""REST: what an operator registered, and which workers are alive."""

from __future__ import annotations

from fastapi import APIRouter

from service import problems
from service.access import Reader
from service.bisections import UsesParts
from service.problem_responses import document
from service.shapes import (
    ProfileList,
    RepositoryList,
    WorkerList,
    show_profile,
    show_repository,
    show_worker,
)

router = APIRouter(prefix="/v1", tags=["registry"])

_CATALOGUE = document(problems.UNAUTHENTICATED, problems.FORBIDDEN, problems.BAD_CATALOGUE)


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
    "/repositories",
    operation_id="listRepositories",
    summary="List the repositories",
    response_model=RepositoryList,
    responses=_CATALOGUE,
)
def list_repositories(_caller: Reader, parts: UsesParts) -> RepositoryList:
    """The repositories that can be bisected."""
    return RepositoryList(items=[show_repository(entry) for entry in parts.catalogue.repositories()])


@router.get(
    "/workers",
    operation_id="listWorkers",
    summary="List the workers",
    response_model=WorkerList,
    responses=document(problems.UNAUTHENTICATED, problems.FORBIDDEN),
)
def list_workers(_caller: Reader, parts: UsesParts) -> WorkerList:
    """Those that were seen within the last half minute. A queue without one waits."""
    return WorkerList(items=[show_worker(row) for row in parts.roster.alive()])
