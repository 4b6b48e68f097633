"""Alembic's entry: runs the migrations on the connection that `Database.migrate` hands over."""

from __future__ import annotations

from alembic import context

from bisection.adapters.storage import keeping_schema, nightly_schema

assert keeping_schema.metadata is nightly_schema.metadata  # each adds its tables
context.configure(connection=context.config.attributes["connection"], target_metadata=nightly_schema.metadata)
context.run_migrations()
