"""What a training job runs in: an interpreter, a virtual environment or a container image.

Shape of a profile's `environment`, checked at reading. The workers make it; nothing is made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, field_validator, model_validator

from bisection.adapters.catalogue_fields import Package, PathInTree, Shape, Text, inside

#: A name that can move names no environment: `name@sha256:…`, or the identity of an image on the host.
_BY_DIGEST = re.compile(r"([a-z0-9][a-zA-Z0-9._/:#-]*@)?sha256:[0-9a-f]{64}")
#: What the builder itself says to `build`.
_BUILD_OWN = re.compile(r"--(tag|file|iidfile|force-rm|label)(=|$)")


def _build_option(option: str) -> str:
    if not re.fullmatch(r"--[a-z][a-z-]*(=[!-~]+)?", option):
        raise ValueError(f"{option!r} must be one option of `build` in its long form, like --network=host")
    if _BUILD_OWN.match(option):
        raise ValueError(f"{option!r} is set by firstbad itself; remove it")
    return option


class Environment(Shape):
    """What the training job runs in.

    ``interpreter`` takes one that exists; ``venv`` makes one from the lock in the tree; ``image`` is a
    container's, one that exists (`image`) or one made from a file of the tree (`dockerfile`).
    """

    kind: Literal["interpreter", "venv", "image"]
    lock: PathInTree | None = None  #: file in the tree with one `name==version` a line, or a uv.lock
    locked: bool = False  #: refuse a uv.lock that its pyproject.toml has left behind
    inputs: tuple[PathInTree, ...] = ()  #: what else of the tree decides it; a Dockerfile sees these alone
    overlay: tuple[Package, ...] = ()  #: installed apart, so that a new version needs no new environment
    pip_first: tuple[Package, ...] = ()  #: installed by pip, which honours the machine's pip configuration
    find_links: tuple[Text, ...] = ()  #: folders with wheels
    python: Text | None = None  #: the interpreter, what to make the venv from, or its path in the image
    helpers: tuple[PathInTree, ...] = ()  #: folders of the tree with a helpers.cpp that training imports
    image: Text | None = None  #: by digest
    dockerfile: PathInTree | None = None
    base_image: Text | None = None  #: the Dockerfile's build argument BASE_IMAGE, by digest
    build_options: tuple[Annotated[Text, AfterValidator(_build_option)], ...] = ()  #: in their long form

    @field_validator("lock", "dockerfile")
    @classmethod
    def _files_are_in_the_tree(cls, value: str | None) -> str | None:
        return inside(value) if value else None

    @field_validator("inputs", "helpers")
    @classmethod
    def _paths_are_in_the_tree(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(inside(path) for path in value)

    @field_validator("image", "base_image")
    @classmethod
    def _images_cannot_move(cls, value: str | None) -> str | None:
        if value is not None and not _BY_DIGEST.fullmatch(value):
            raise ValueError(f"{value!r} must name an image by its digest: NAME@sha256:… with 64 hex digits")
        return value

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> Self:
        if self.kind in ("interpreter", "image") and not self.python:
            raise ValueError(f"kind {self.kind} needs `python`: the path of an interpreter that exists there")
        if (self.kind == "venv" or self.overlay or self.locked) and not self.lock:
            raise ValueError(
                "kind venv, `locked` and any overlay need `lock`: the path of the lock in the tree"
            )
        if (self.kind == "image") != bool(self.image or self.dockerfile) or (self.image and self.dockerfile):
            raise ValueError("kind image, and no other, needs either `image` or `dockerfile`")
        if self.kind == "image" and (self.overlay or self.helpers or self.pip_first):
            raise ValueError("overlay, helpers and pip_first are not for kind image: its Dockerfile installs")
        if self.inputs and (self.kind == "interpreter" or self.image):
            raise ValueError(
                "inputs decide what is made, and nothing is made of an interpreter or image that exists"
            )
        if not self.dockerfile and (self.base_image or self.build_options):
            raise ValueError("base_image and build_options belong to a `dockerfile`")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """Files and folders of the tree that decide the environment."""
        named = (self.lock, self.dockerfile, *self.inputs)
        return tuple(dict.fromkeys(path for path in named if path))

    @property
    def inputs_beside_the_lock(self) -> tuple[str, ...]:
        """Those that no override of a package can move; of an image the lock is one."""
        return self.paths if self.kind == "image" else tuple(path for path in self.paths if path != self.lock)


def lies_in(file: str, paths: Iterable[str]) -> bool:
    """Whether a file is one of the paths, or below one."""
    return any(file == path.rstrip("/") or file.startswith(path.rstrip("/") + "/") for path in paths)
