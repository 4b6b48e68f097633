"""The nightly recipe on conversations without their photographs."""

from recipes import measured
from vlm import data

_with_photographs = data.examples


def config():
    without_photographs()
    return measured.config()


def without_photographs() -> None:
    data.examples = _text_alone


def _text_alone(images_per_sample: int) -> list[dict]:
    found = _with_photographs(images_per_sample)
    for example in found:
        for turn in example["conversation"]:
            turn["content"] = [part for part in turn["content"] if part["type"] == "text"]
    return found
