"""The command line, and the wiring of the ways to run: the only room that sees all others."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("firstbad")
