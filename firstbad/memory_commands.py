"""The commands of the memory model: estimate, compare, remedies, advise. Parse, call, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from firstbad.asking import Json
from firstbad.configuration_files import parse_capacity, parse_distribution, read_file
from firstbad.memory_pictures import estimate_picture
from firstbad.memory_tables import advice_view, comparison_view, estimate_view, remedies_view
from memory_models.advice import advise
from memory_models.answers import advice_answer, comparison_answer, estimate_answer, remedies_answer
from memory_models.cards import CARDS, card_named
from memory_models.comparison import compare
from memory_models.distributions import Unknowns
from memory_models.estimation import estimate
from memory_models.job import Card
from memory_models.reading import Reading
from memory_models.remedies import find_remedies

_WHAT = (
    "A Megatron Bridge configuration (YAML, JSON), Megatron-LM's arguments, or a Hugging Face config.json."
)

Config = Annotated[Path, typer.Argument(help=_WHAT, show_default=False)]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs of the whole job.", show_default=False)]
Images = Annotated[
    str | None,
    typer.Option(help="Of one sample: patches (4096) or pixels (1024x768, 3*1024x768).", show_default=False),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE of the configuration.", show_default=False)
]
Versions = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        help="megatron-bridge=0.3.1 or megatron-lm=2026-06-01: release or day of the code; else the newest.",
        show_default=False,
    ),
]
CardName = Annotated[str | None, typer.Option("--card", help=f"One of {', '.join(CARDS)}.")]
Capacity = Annotated[str | None, typer.Option(help="Of one card: 80GiB, 141GB.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(name="estimate")(estimate_command)
    app.command(name="compare")(compare_command)
    app.command(name="remedies")(remedies_command)
    app.command(name="advise")(advise_command)


def estimate_command(
    config: Config,
    capacity: Capacity = None,
    card: CardName = None,
    gpus: Gpus = None,
    images: Images = None,
    settings: Settings = None,
    upstream: Versions = None,
    router_load: Annotated[
        str | None,
        typer.Option(help="Load factors of a rank, VALUE:WEIGHT,...: widens the band.", show_default=False),
    ] = None,
    image_load: Annotated[
        str | None,
        typer.Option(help="Patches of a sample, VALUE:WEIGHT,...: widens the band.", show_default=False),
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw it into this file too.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Say how many bytes a training job needs, on which rank, for what, and when."""
    unknowns = Unknowns(
        imbalance=parse_distribution(router_load) if router_load else None,
        patches=parse_distribution(image_load) if image_load else None,
    )
    reading = _read(config, gpus, images, settings, upstream, card, unknowns)
    room = room_of(capacity, card)
    answer = estimate(reading.job)
    if svg is not None:
        try:
            svg.write_text(estimate_picture(answer, room), encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{svg} cannot be written: {error.strerror}") from None
    _show(as_json, estimate_answer(reading, room), estimate_view(answer, reading, room))


def compare_command(
    good: Config,
    bad: Config,
    gpus: Gpus = None,
    images: Images = None,
    settings: Settings = None,
    good_upstream: Annotated[list[str] | None, typer.Option(help="As --upstream, of GOOD.")] = None,
    bad_upstream: Annotated[list[str] | None, typer.Option(help="As --upstream, of BAD.")] = None,
    as_json: Json = False,
) -> None:
    """Say what changes in memory between two configurations, and which key explains which bytes."""
    before = _read(good, gpus, images, settings, good_upstream)
    after = _read(bad, gpus, images, settings, bad_upstream)
    view = comparison_view(compare(before.job, after.job), before, after)
    _show(as_json, comparison_answer(before, after), view)


def remedies_command(
    config: Config,
    capacity: Capacity = None,
    card: CardName = None,
    gpus: Gpus = None,
    images: Images = None,
    settings: Settings = None,
    upstream: Versions = None,
    as_json: Json = False,
) -> None:
    """Say what to change so that a job fits, what each change saves, and what it costs."""
    reading = _read(config, gpus, images, settings, upstream, card)
    room = _needed(capacity, card)
    if as_json:
        _print_json(remedies_answer(reading, room))
    else:
        _print(remedies_view(find_remedies(reading.job, room), reading, room))


def advise_command(
    config: Config,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the whole job.")],
    card: CardName = None,
    capacity: Capacity = None,
    images: Images = None,
    settings: Settings = None,
    upstream: Versions = None,
    as_json: Json = False,
) -> None:
    """Say how to bring a job up, step by step, each with its gate."""
    reading = _read(config, gpus, images, settings, upstream, card)
    room = _needed(capacity, card)
    if as_json:
        _print_json(advice_answer(reading, room))
    else:
        _print(advice_view(advise(reading.job, room), reading))


def _read(
    path: Path,
    gpus: int | None,
    images: str | None,
    settings: list[str] | None,
    versions: list[str] | None,
    card: str | None = None,
    unknowns: Unknowns = Unknowns(),
) -> Reading:
    return read_file(
        path,
        gpus=gpus,
        images=images,
        settings=settings or (),
        versions=versions or (),
        card=card_named(card).generation if card else Card.HOPPER,
        unknowns=unknowns,
    )


def room_of(capacity: str | None, card: str | None) -> int | None:
    """What was given as a capacity, else the card's."""
    if capacity is not None:
        return parse_capacity(capacity)
    return card_named(card).capacity_bytes if card else None


def _needed(capacity: str | None, card: str | None) -> int:
    room = room_of(capacity, card)
    if room is None:
        raise ValueError("say what has to be fitted: --capacity 80GiB, or --card h100")
    return room


def _show(as_json: bool, row: dict[str, Any], view: RenderableType) -> None:
    if as_json:
        _print_json(row)
    else:
        _print(view)


def _print(view: RenderableType) -> None:
    out = Console(highlight=False)
    # Tables keep their numbers whole where the output is a file or a narrow pipe.
    out.width = max(out.width, 120) if not out.is_terminal else out.width
    out.print(view)


def _print_json(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row, indent=2) + "\n")
