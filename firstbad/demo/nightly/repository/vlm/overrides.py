"""KEY=VALUE on the command line, onto a configuration that is already built."""

from typing import Any

import torch
import yaml


def apply_overrides(config: Any, overrides: list[str]) -> None:
    """Set each dotted key to its YAML value, or to a dtype if it is spelt like torch.bfloat16.

    SystemExit for a key that the configuration does not have.
    """
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise SystemExit(f"{override!r} is not KEY=VALUE, e.g. train.micro_batch_size=1")
        *path, name = key.split(".")
        target = config
        for part in path:
            target = getattr(target, part, None)
        if target is None or not hasattr(target, name):
            raise SystemExit(f"the configuration has no key {key!r}: see recipes/ for the keys it has")
        setattr(target, name, value_of(text))


def value_of(text: str) -> Any:
    value = yaml.safe_load(text)
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value
