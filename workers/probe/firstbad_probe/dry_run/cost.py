"""What a dry run itself costs on this machine, beside its record: never a part of what it measured."""

from __future__ import annotations

import resource
import time

from firstbad_probe.files import write_json
from firstbad_probe.settings import Settings


class Cost:
    """Counts from its making: when all is imported and nothing is built."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._used = time.process_time()

    def write(self, settings: Settings) -> None:
        """`rehearsal-RANK.json`: seconds by the clock and of a processor, and the most memory so far."""
        row = {
            "seconds": time.monotonic() - self._began,
            "processor_seconds": time.process_time() - self._used,
            "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        write_json(settings.directory / f"rehearsal-{settings.rank}.json", row)
