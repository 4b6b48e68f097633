"""How a trial without a container is kept from its host: what it sees, whose rights it has, what it may take.

A trial runs code that strangers wrote. Shapes only, checked at reading; `workers.isolating` makes a
command of it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from bisection.adapters.catalogue_fields import Bytes, Shape


class Isolation(Shape):
    """The command sees the system's programs, its environment, the data and places, and its own folders.

    Only its own folders can be written: the workspace, home, tmp and probe. Each limit is of one process,
    but for ``processes``, which is of all that the user has on the host.
    """

    #: Whose rights it has where the worker is root; any other worker's trials keep that worker's own user.
    user: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] = "nobody"
    network: bool = False  #: whether the host's network is seen; ranks on one host need none
    memory_bytes: Bytes | None = None  #: private memory of the host's (RLIMIT_DATA)
    processes: Annotated[int, Field(ge=16, lt=2**31)] | None = None  #: threads count
    open_files: Annotated[int, Field(ge=64, lt=2**31)] | None = None
    file_bytes: Bytes | None = None  #: of one file that it writes
