"""The batch of a Bridge configuration: its length, and what its data set says of images."""

from __future__ import annotations

from collections.abc import Mapping

from memory_models.reading_values import Section
from memory_models.shapes import ImageLoad

#: The largest picture that Bridge's Qwen-VL collator lets through, in pixels.
DEFAULT_MAX_PIXELS = 1_003_520


def read_sequence_length(model: Section, dataset: Section) -> int:
    """The data set's length, which Bridge's runner copies into the model's."""
    for section in (model, dataset):
        value = section.get("seq_length")
        if isinstance(value, int) and value > 0:
            dataset.get("seq_length")
            return value
    raise ValueError("the configuration names no sequence length: set model.seq_length")


#: Keys of a data set that only bound the image load, which the caller may know better.
IMAGE_KEYS = (
    "num_images",
    "images_per_sample",
    "image_size",
    "source",
    "task_encoder",
    "min_pixels",
    "max_pixels",
)


def read_images(dataset: Section, notes: list[str]) -> ImageLoad:
    """What the data set's own bounds let one sample bring."""
    count = int(dataset.get("num_images") or dataset.get("images_per_sample") or 1)
    size = dataset.get("image_size")
    if isinstance(size, list) and len(size) == 2:
        return ImageLoad.of_pixels(int(size[0]), int(size[1]), images=count)
    source = dataset.get("source")
    keywords = source.get("adapter_kwargs") if isinstance(source, Mapping) else None
    if isinstance(keywords, Mapping) and "resized_height" in keywords:
        return ImageLoad.of_pixels(
            int(keywords["resized_height"]), int(keywords["resized_width"]), images=count
        )
    encoder = dataset.get("task_encoder")
    pixels = encoder.get("max_pixels") if isinstance(encoder, Mapping) else None
    pixels = int(pixels or dataset.get("max_pixels") or DEFAULT_MAX_PIXELS)
    notes.append(
        f"the image load is not known: {count} image of {pixels} pixels a sample "
        "is assumed, the largest that passes"
    )
    side = int(pixels**0.5)
    return ImageLoad.of_pixels(side, side, images=count)


def read_packing(dataset: Section, notes: list[str]) -> bool:
    """Whether samples are packed behind each other instead of padded."""
    packed = dataset.flag("enable_in_batch_packing")
    if packed:
        notes.append("sequences are packed: estimated at their full length, which a batch need not reach")
    return packed
