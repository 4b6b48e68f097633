"""How a trial's command runs inside an image: by which program, and what of the host it sees.

Which image that is, and which Python in it, is the environment's to say (`profiles.Environment`,
kind ``image``). Shapes only, checked at reading.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, field_validator, model_validator

from bisection.adapters.catalogue_fields import Bytes, Shape, Text

#: What the launcher itself says to the container's program.
_OWN = re.compile(
    r"--(name|label|rm|detach|interactive|tty|entrypoint|env|env-file|env-host|volume|mount|network|net|workdir"
    r"|user|userns|pull|gpus|memory|memory-swap|shm-size|cidfile|pidfile|restart|replace|stop-timeout|rootfs"
    r"|pwd|bind|containall|cleanenv|nv|pid|container-image|container-mounts|container-env|container-workdir"
    r"|container-name|container-mount-home|no-container-mount-home|no-container-entrypoint)(=|$)"
)


def _option(option: str) -> str:
    if not re.fullmatch(r"--[a-z][a-z-]*(=[!-~]+)?", option):
        raise ValueError(f"{option!r} must be one option of the program in its long form, like --ipc=host")
    if _OWN.match(option):
        raise ValueError(f"{option!r} is set by firstbad itself; remove it")
    return option


class Mount(Shape):
    """A folder or file of the host that the command sees, read-only unless said otherwise."""

    source: Text
    target: Text = ""  #: empty: under the same path
    writable: bool = False

    @field_validator("source", "target")
    @classmethod
    def _paths_are_whole(cls, value: str) -> str:
        if value and not re.fullmatch(r"/[^:,\n]*", value):
            raise ValueError(f"{value!r} must be an absolute path without colon or comma")
        return value

    @property
    def place(self) -> str:
        return self.target or self.source


class Container(Shape):
    """The trial's command runs inside the environment's image.

    Docker and Podman run it on this host or on a node of the cluster, Apptainer likewise; Pyxis lets
    ``srun`` start it and needs ``slurm``. The workspace and the trial's folder are mounted under their own
    paths, the profile's data and places read-only; nothing else of the host is seen.
    """

    runtime: Literal["docker", "podman", "apptainer", "pyxis"]
    options: tuple[Annotated[Text, AfterValidator(_option)], ...] = ()  #: of ``run`` or ``exec``, long form
    mounts: tuple[Mount, ...] = ()
    network: bool = False  #: whether the host's network is seen; ranks on one host need none
    memory_bytes: Bytes | None = None  #: of the host's, for all processes; none: the host's own limit
    #: Data loaders hand batches over in it; a container's own default, 64 MiB, ends them by SIGBUS.
    shared_memory_bytes: Bytes = 16 * 2**30

    @model_validator(mode="after")
    def _the_runtime_can(self) -> Self:
        if self.memory_bytes and self.runtime not in ("docker", "podman"):
            raise ValueError(f"memory_bytes is not for {self.runtime}: limit the job itself (--mem in Slurm)")
        if self.runtime == "pyxis" and not self.network:
            raise ValueError("Pyxis shares the node's network: write network: true to say so")
        return self
