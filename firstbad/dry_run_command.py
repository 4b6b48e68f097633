"""`firstbad dry-run`: a job's memory by running its code without a device, beside the estimate."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError
from rich.console import Console

from bisection.adapters.dry_runs import DryRun
from firstbad.asking import EXIT_WRONG, Json, err, fail
from firstbad.configuration_files import load_configuration, parse_pictures, parse_settings
from firstbad.dry_run_comparison import Beside, beside, read_job
from firstbad.dry_run_picture import timeline_picture
from firstbad.dry_run_process import Rehearsed, rehearse
from firstbad.dry_run_tables import rehearsal_view
from firstbad.memory_commands import Capacity, CardName, Settings, room_of

VERSION = 1


def register(app: typer.Typer) -> None:
    app.command(name="dry-run")(dry_run)


def dry_run(
    config: Annotated[Path, typer.Argument(help="A Hugging Face config.json.", show_default=False)],
    world: Annotated[int, typer.Option(min=1, help="GPUs of the whole job.", show_default=False)],
    python: Annotated[
        Path,
        typer.Option(help="An interpreter with Megatron Bridge and a torch for CPUs.", show_default=False),
    ],
    settings: Settings = None,
    images: Annotated[
        str | None,
        typer.Option(help="Of one sample, in pixels: 1024x768, 3*1024x768.", show_default=False),
    ] = None,
    layers: Annotated[str, typer.Option(help="production or unfused.")] = "production",
    skew: Annotated[
        float, typer.Option(min=0, help="Of the experts' load: exponent of a Zipf distribution.")
    ] = 0,
    parallel: Annotated[int, typer.Option(min=1, help="Pipeline stages that run at once.")] = 1,
    capacity: Capacity = None,
    card: CardName = None,
    svg: Annotated[
        Path | None, typer.Option(help="Draw the course of memory into this file.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how many bytes a job needs by running its own code on tensors without data, at full size.

    Exits with 1 where it does not fit, or where the code fails.
    """
    if "architectures" not in load_configuration(config):
        raise ValueError(f"{config} names no architectures: give a Hugging Face config.json")
    parse_settings(settings or ())
    pictures = parse_pictures(images) if images else []
    room = room_of(capacity, card)
    asked = _asked(world, pictures, layers, skew, parallel)
    with err.status("starting") as status:
        result = rehearse(
            python.absolute(),
            config,
            settings or (),
            asked,
            room,
            lambda text: status.update(text) if err.is_terminal else err.print(text, markup=False),
        )
    worst = result.worst
    if worst.status == "failed" or worst.invalid:
        _fail(result)
    compared, why_not = _compared(result, world, pictures)
    if svg is not None:
        try:
            svg.write_text(timeline_picture(worst, room), encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{svg} cannot be written: {error.strerror}") from None
    if as_json:
        sys.stdout.write(json.dumps(answer(result, asked, compared, why_not, room), indent=2) + "\n")
    else:
        console = Console(highlight=False)
        console.width = max(console.width, 120) if not console.is_terminal else console.width
        console.print(rehearsal_view(result, compared, why_not, room))
    if worst.status != "completed":
        raise typer.Exit(EXIT_WRONG)


def _asked(world: int, pictures: list[tuple[int, int]], layers: str, skew: float, parallel: int) -> DryRun:
    if layers not in ("production", "unfused"):
        raise ValueError(f"--layers is {layers!r}: it must be production or unfused")
    chosen: Literal["production", "unfused"] = "production" if layers == "production" else "unfused"
    try:
        return DryRun(world_size=world, images=tuple(pictures), layers=chosen, skew=skew, parallel=parallel)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


def _fail(result: Rehearsed) -> None:
    worst = result.worst
    if worst.invalid:
        fail(f"the dry run is not what was asked: {'; '.join(worst.invalid)}")
    error = worst.error
    if error is None:
        fail(f"rank {worst.rank} failed without an error")
    at = "".join(f"\n  {frame}" for frame in error.frames[-6:])
    fail(
        f"the code itself fails on rank {worst.rank} of a dry run, with {error.type}: {error.message[:2000]}"
        f"\nThe last functions that it came through:{at}"
    )


def _compared(result: Rehearsed, world: int, pictures: list[tuple[int, int]]) -> tuple[Beside | None, str]:
    worst = result.worst
    if worst.peak is None:
        return None, "nothing was measured"
    if worst.status != "completed":
        return None, "the run was refused before its peak"
    try:
        reading = read_job(result.configuration, world, pictures, result.versions)
        return beside(reading, worst, result.storages.get(worst.rank, {})), ""
    except (ValueError, ArithmeticError) as error:
        return None, f"the memory model cannot follow this configuration: {error}"


def answer(
    result: Rehearsed, asked: DryRun, compared: Beside | None, why_not: str, capacity_bytes: int | None
) -> dict[str, Any]:
    """The JSON of `--json`: every stage, the worst one's cells beside the estimate, and what is not seen."""
    worst = result.worst
    return {
        "version": VERSION,
        "question": "dry run",
        "simulated": True,
        "asked": asked.model_dump(mode="json"),
        "capacity_bytes": capacity_bytes,
        "status": worst.status,
        "versions": dict(result.versions),
        "ranks": [
            {
                "rank": rank,
                "status": file.status,
                "peak": file.peak.model_dump(mode="json") if file.peak else None,
            }
            for rank, file in sorted(result.ranks.items())
        ],
        "worst_rank": worst.rank,
        "oom": worst.oom.model_dump(mode="json") if worst.oom else None,
        "instants": [instant.model_dump(mode="json") for instant in worst.instants],
        "estimate": None
        if compared is None
        else {
            "allocated_bytes": compared.estimate.allocated_bytes,
            "instant": compared.estimate.instant,
            "cells": [row.to_json() for row in compared.rows],
            "notes": list(compared.reading.notes),
            "ignored": list(compared.reading.ignored),
        },
        "no_estimate": why_not,
        "not_modelled": list(worst.unseen),
        "patches": dict(worst.patches),
        "notes": list(worst.notes),
        "seconds": result.seconds,
    }
