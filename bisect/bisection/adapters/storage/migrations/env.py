"""Alembic's entry: runs the migrations on the connection that `Database.migrate` hands over."""

from __future__ import annotations

from alembic import context

# Each adds its tables to the metadata.
from bisection.adapters.storage import keeping_schema, nightly_schema  # noqa: F401
from bisection.adapters.storage.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
