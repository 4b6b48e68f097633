"""The reports as pages; each says where its trials' logs and its words are explained."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from bisection.adapters.storage.bisections import BisectionRow
from bisection.rendering.html import Surroundings, render_html
from bisection.rendering.sweep_html import render_sweep_html
from service.bisections import Existing, UsesParts
from service.pages.progress import progress_page
from service.pages.sessions import SignedIn
from service.parts import Parts
from service.problems import Problem
from service.reports import REPORT_POLICY, finished_report
from service.sweeps import Existing as ExistingSweep
from service.sweeps import report_of

router = APIRouter()


@router.get("/reports/{bisection_id}")
def show_report(request: Request, caller: SignedIn, row: Existing, parts: UsesParts) -> Response:
    """The report; before there is one, how far the bisection got."""
    try:
        report = finished_report(row, parts)
    except Problem:
        return progress_page(request, caller, row, parts)
    return _standing_alone(render_html(report, surroundings=_surroundings(row, parts)))


def _surroundings(row: BisectionRow, parts: Parts) -> Surroundings:
    trials = parts.trials.of(row.id)
    return Surroundings(
        home="/",
        bisection=f"/bisections/{row.id}",
        explanations="/errors",
        trials={
            trial.sequence: f"/bisections/{row.id}/trials/{trial.id}"
            for trial in trials
            if trial.sequence is not None
        },
    )


@router.get("/sweeps/{sweep_id}")
def show_sweep(_caller: SignedIn, row: ExistingSweep, parts: UsesParts) -> Response:
    """Its report, of what is known so far while it runs."""
    return _standing_alone(render_sweep_html(report_of(row, parts)))


def _standing_alone(page: str) -> Response:
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)
