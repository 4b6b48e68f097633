"""Files and words that people give the memory commands: configurations, capacities, image loads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_models.configurations import read_configuration
from memory_models.distributions import Distribution, Unknowns
from memory_models.job import Card
from memory_models.reading import Reading
from memory_models.shapes import ImageLoad
from service.configuration_texts import parse_configuration

_UNITS = {"": 1, "b": 1, "gib": 2**30, "mib": 2**20, "tib": 2**40, "gb": 10**9, "mb": 10**6, "tb": 10**12}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)")
_PICTURES = re.compile(r"(?:([0-9]+)\*)?([0-9]+)x([0-9]+)")
#: A configuration of some hundred kilobytes is already unusual.
_MOST_BYTES = 8 * 2**20


def load_configuration(path: Path) -> dict[str, Any]:
    """YAML, JSON, or Megatron-LM's arguments in a script. Raises ValueError that says what is wrong."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} is larger than any configuration ({_MOST_BYTES >> 20} MiB)")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text; give a configuration in YAML or JSON, or arguments") from None
    return parse_configuration(text, str(path))


def read_file(
    path: Path,
    *,
    gpus: int | None,
    images: str | None,
    settings: Sequence[str] = (),
    versions: Sequence[str] = (),
    card: Card = Card.HOPPER,
    unknowns: Unknowns = Unknowns(),
) -> Reading:
    """The job of a file. Raises ValueError that names the file."""
    config = load_configuration(path)
    load = parse_images(images) if images else None
    try:
        return read_configuration(
            config,
            world_size=gpus,
            images=load,
            overrides=parse_settings(settings),
            versions=dict(map(_pair, versions)),
            card=card,
            unknowns=unknowns,
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE words; a value is JSON where it is valid JSON, text otherwise."""
    found: dict[str, Any] = {}
    for key, text in map(_pair, words):
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _pair(word: str) -> tuple[str, str]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise ValueError(f"{word!r} is not KEY=VALUE")
    return key, text


_SMALLEST_CARD_BYTES = 2**20


def parse_capacity(words: str) -> int:
    """Bytes of "80GiB", "141 GB" or "85899345920". Raises ValueError."""
    match = _AMOUNT.fullmatch(words.strip())
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{words!r} is no amount of memory: write 80GiB, 141GB or bytes")
    size = round(float(match[1]) * _UNITS[match[2].lower()])
    if size <= 0:
        raise ValueError(f"{words!r} is no card's memory: it must be more than 0")
    if size < _SMALLEST_CARD_BYTES:
        raise ValueError(f"{words!r} is {size} bytes, which no card has: write a unit, like {words}GiB")
    return size


def parse_distribution(words: str) -> Distribution:
    """Values and weights: "1.0:5,1.2:4,1.8:1". Raises ValueError."""
    try:
        pairs = [pair.split(":") for pair in words.split(",")]
        return Distribution.of({float(value): float(weight) for value, weight in pairs})
    except ValueError as error:
        raise ValueError(f"{words!r} is no distribution (1.0:5,1.2:4,1.8:1): {error}") from None


def parse_pictures(words: str) -> list[tuple[int, int]]:
    """Height and width in pixels, for each picture of "1024x768" or "3*1024x768". Raises ValueError."""
    match = _PICTURES.fullmatch(words.strip().replace(" ", ""))
    if match is None:
        raise ValueError(f"{words!r} is no picture: write height x width in pixels (1024x768, 3*1024x768)")
    return [(int(match[2]), int(match[3]))] * int(match[1] or 1)


def parse_images(words: str) -> ImageLoad:
    """What a sample brings: patches ("4096"), a picture ("1024x768") or several ("3*1024x768")."""
    if words.isdigit():
        return ImageLoad(patches=int(words), images=1 if int(words) else 0)
    match = _PICTURES.fullmatch(words.strip().replace(" ", ""))
    if match is None:
        raise ValueError(f"{words!r} is no image load: write patches (4096) or pixels (1024x768, 3*1024x768)")
    return ImageLoad.of_pixels(int(match[2]), int(match[3]), images=int(match[1] or 1))
