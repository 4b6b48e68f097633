"""Configurations of training jobs as people hand them over: YAML, JSON, or a launch script's arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from memory_models.megatron_arguments import parse_arguments


def parse_configuration(text: str, name: str) -> dict[str, Any]:
    """The mapping that a text holds. Raises ValueError that names the text and says what is wrong."""
    held, why = _load(text)
    if isinstance(held, Mapping):
        return {str(key): value for key, value in held.items()}
    if re.search(r"(^|\s)--[a-z]", text):
        return parse_arguments(text)
    raise ValueError(f"{name} is neither YAML nor JSON nor Megatron-LM's arguments: {why}")


def _load(text: str) -> tuple[Any, str]:
    """What the text holds, and why that would be no configuration. JSON first: YAML takes seconds for it."""
    why = "it holds no mapping"
    try:
        return json.loads(text), why
    except ValueError:
        pass
    try:
        return yaml.safe_load(text), why
    except yaml.YAMLError as error:
        return None, str(error).replace("\n", " ")


def has_aliases(text: str) -> bool:
    """Whether a YAML text repeats parts of itself: ten lines of that can stand for gigabytes."""
    if "*" not in text:
        return False
    try:
        return any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError:
        return False  # then it is not read as YAML either
