"""Megatron-LM's arguments as people have them: a script's words, or a mapping of flags.

Here words become argparse destinations, with the defaults of the newest megatron-core; what
they mean for memory is reading_megatron.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

#: Defaults of argparse that are not "off", as of 2026-08.
DEFAULTS: Mapping[str, Any] = {
    "add_bias_linear": True,
    "apply_rope_fusion": True,
    "attention_dropout": 0.1,
    "bias_dropout_fusion": True,
    "bias_gelu_fusion": True,
    "bias_swiglu_fusion": True,
    "gradient_accumulation_fusion": True,
    "hidden_dropout": 0.1,
    "make_vocab_size_divisible_by": 128,
    "masked_softmax_fusion": True,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "allgather",
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
    "transformer_impl": "transformer_engine",
}

#: Flags that switch another destination off.
_NEGATIONS = {
    "disable_bias_linear": "add_bias_linear",
    "no_bias_dropout_fusion": "bias_dropout_fusion",
    "no_bias_gelu_fusion": "bias_gelu_fusion",
    "no_bias_swiglu_fusion": "bias_swiglu_fusion",
    "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
    "no_masked_softmax_fusion": "masked_softmax_fusion",
    "no_rope_fusion": "apply_rope_fusion",
}

#: Flags whose destination has another name.
_DESTINATIONS = {"fp8_format": "fp8"}

_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")


def parse_arguments(text: str) -> dict[str, Any]:
    """Destinations of the ``--flags`` in a script or command line; words before the first flag are left out.

    Raises ValueError for a shell variable, whose value no file tells, and for text without any flag.
    """
    found: dict[str, Any] = {}
    name: str | None = None
    values: list[str] = []
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ValueError(f"the arguments cannot be split into words: {error}") from None
    for word in [*words, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name is not None:
            _put(found, name, values)
        flag, equals, value = word.partition("=")
        name, values = flag, [value] if equals else []
    if not found:
        raise ValueError("the text holds no --flag: give Megatron-LM's arguments, as its script gets them")
    return found


def destinations(held: Mapping[str, Any]) -> dict[str, Any]:
    """The same out of a mapping of flags or of destinations, its values as they are."""
    found: dict[str, Any] = {}
    for key, value in held.items():
        name = str(key).removeprefix("--").replace("-", "_")
        if name in _NEGATIONS:
            if value is not False:
                found[_NEGATIONS[name]] = False
        else:
            found[_DESTINATIONS.get(name, name)] = value
    return found


def _put(found: dict[str, Any], flag: str, values: list[str]) -> None:
    unknown = next((value for value in values if "$" in value), None)
    if unknown is not None:
        raise ValueError(f"{flag} holds the shell variable {unknown!r}: write its value into the file")
    parsed: Any = True
    if values:
        parsed = _value(values[0]) if len(values) == 1 else [_value(value) for value in values]
    found |= destinations({flag: parsed})


def _value(word: str) -> Any:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if not _NUMBER.fullmatch(word):
        return word
    return int(word) if word.lstrip("+-").isdigit() else float(word)
