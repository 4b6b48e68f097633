"""The tables of what is kept for how long, and of what must not be told. See `schema` for the others."""

from __future__ import annotations

from sqlalchemy import JSON, Column, Index, Integer, LargeBinary, String, Table

from bisection.adapters.storage.schema import metadata

# The record of every removal. It outlives what it is about, so it refers to no row.
removals = Table(
    "removals",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", String(32), nullable=False),
    Column("bisection_id", String(32), nullable=False),
    Column("what", String(16), nullable=False),  # artifacts, or the whole bisection
    Column("by", String(200), nullable=False),  # who asked, or "policy"
    Column("counts", JSON, nullable=False),  # what it was in numbers
    Index(None, "bisection_id", "id"),
)

# What all workers of the installation share and nobody else may know.
installation_keys = Table(
    "installation_keys",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
