"""`python -m firstbad_probe SCRIPT ARGS...`: run the script under observation.

The script runs as `__main__` with its own arguments. How it ends is how this
process ends; the record of the rank is written before.
"""

from __future__ import annotations

import os
import runpy
import sys

try:
    from firstbad_probe.dry_run.orders import PRODUCTION, read_orders
    from firstbad_probe.hooks import Hooks
    from firstbad_probe.imports import ImportCallbacks
    from firstbad_probe.observer import Observer
    from firstbad_probe.patches import Patches
    from firstbad_probe.record import repository_of, write_record
    from firstbad_probe.settings import read_settings
except ImportError as missing:
    # The job has not begun: whoever reads this must not take it for the job's failure.
    raise SystemExit(f"firstbad_probe: it needs torch in the job's environment: {missing}") from None


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m firstbad_probe SCRIPT [ARGS...]")
    try:
        settings = read_settings()
        orders = read_orders(os.environ, settings.world_size) if settings.device == "dry_run" else None
    except ValueError as refusal:
        raise SystemExit(f"firstbad_probe: {refusal}") from None
    script = sys.argv[1]
    repository = repository_of(script)
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    callbacks, patches = ImportCallbacks(), Patches()
    callbacks.install()
    observer = Observer(settings)
    if orders is not None and orders.layers == PRODUCTION:
        from firstbad_probe.dry_run import fused

        fused.install(patches)
    if settings.device != "cuda":
        from firstbad_probe import platform

        platform.install(
            patches,
            callbacks,
            local_world_size=settings.local_world_size,
            to_device=observer.storages.to_device,
            local_layers=orders is None or orders.layers != PRODUCTION,
        )
    rehearsal = None
    if orders is not None:
        from firstbad_probe.dry_run.rehearsal import Rehearsal

        rehearsal = Rehearsal(orders, patches, observer)
        rehearsal.install(callbacks)
    Hooks(observer).watch(callbacks)
    error: BaseException | None = None
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as exit_:
        error = exit_ if exit_.code else None
        raise
    except BaseException as failure:
        error = failure
        raise
    finally:
        if rehearsal is not None:
            rehearsal.end()
        observer.finish()
        write_record(observer.settings, observer, patches, callbacks, error, repository)


if __name__ == "__main__":
    main()
