"""Photographs with captions, all of one size, for the nightly run.

They are those that scikit-image ships in its wheel, so nothing is downloaded.
"""

from dataclasses import dataclass
from importlib import resources

from PIL import Image

SIDE = 448  #: pixels of a photograph's width and height

CAPTIONS = {
    "astronaut.png": "An astronaut in an orange suit stands in front of a flag and a model of a shuttle.",
    "coffee.png": "A cup of coffee on a saucer with a spoon, on a wooden table.",
    "rocket.jpg": "A rocket on its launch pad between two towers, before sunrise.",
    "motorcycle_left.png": "A motorcycle in a workshop, with shelves of tools behind it.",
    "hubble_deep_field.jpg": "Galaxies of many shapes and colours in a dark field.",
    "chelsea.png": "The face of a ginger cat that looks past the camera.",
}


@dataclass(frozen=True)
class Photograph:
    image: Image.Image  #: RGB, SIDE by SIDE
    caption: str


def load() -> list[Photograph]:
    """All photographs, cut to their middle square and scaled to SIDE."""
    return [Photograph(_square(name), caption) for name, caption in CAPTIONS.items()]


def _square(name: str) -> Image.Image:
    with resources.as_file(resources.files("skimage.data") / name) as path, Image.open(path) as opened:
        photograph = opened.convert("RGB")
    edge = min(photograph.size)
    left, top = (photograph.width - edge) // 2, (photograph.height - edge) // 2
    middle = photograph.crop((left, top, left + edge, top + edge))
    return middle.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
