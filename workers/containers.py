"""A trial's command inside an image: the words that start it there, and how what was started ends.

What the image is decides the environment (`PreparedEnvironment.image` and its `python`, a path in the
image); how it is run, the profile (`catalogue.Container`). The command sees the workspace, the trial's
folder, firstbad's own programs for it, the profile's data and places, and nothing else of this host.
"""

from __future__ import annotations

import os

#: What a container's program needs of the worker's environment; the trial's own goes in by words.
_CLIENTS = (
    "HOME", "PATH", "XDG_RUNTIME_DIR", "TMPDIR", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG",
    "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF",
    "REGISTRY_AUTH_FILE", "APPTAINER_CACHEDIR", "APPTAINER_TMPDIR",
)  # fmt: skip


def client_environment() -> dict[str, str]:
    """For every call of docker, podman or apptainer: the worker's own, without anything of the service."""
    return {name: os.environ[name] for name in _CLIENTS if name in os.environ}
