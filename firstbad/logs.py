"""What services and workers write about themselves: one line a record, to standard error.

Lines of our own code, of Celery and of uvicorn pass the same processors, so each carries the bisection and
the trial that its process is busy with, and all of them are JSON where that is asked for.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def configure_logs(*, as_json: bool = False) -> None:
    """Our own lines from INFO on, those of libraries from WARNING on."""
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    structlog.configure(
        processors=[*_SHARED, renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
