"""`python -m firstbad_probe SCRIPT ARGS...`: run the script under observation."""

from __future__ import annotations

import os
import runpy
import sys

from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.patches import Patches
from firstbad_probe.settings import read_settings


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m firstbad_probe SCRIPT [ARGS...]")
    settings = read_settings()
    callbacks = ImportCallbacks()
    callbacks.install()
    patches = Patches()
    if settings.device == "cpu":
        from firstbad_probe import platform

        platform.install(patches, callbacks, local_world_size=settings.local_world_size)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
