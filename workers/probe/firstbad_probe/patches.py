"""The patches that the probe applied, by name, and how often each one worked.

A figure that was measured with stand-ins must say so: every stand-in has a
name here and is counted when it is used. No patch itself belongs here.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any


class Patches:
    """Counts the uses of every stand-in; a stand-in that was never used stays out."""

    def __init__(self) -> None:
        self._uses: Counter[str] = Counter()

    def use(self, name: str) -> None:
        self._uses[name] += 1

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted under this name at every call."""

        @functools.wraps(function)
        def stand_in(*args: Any, **keywords: Any) -> Any:
            self._uses[name] += 1
            return function(*args, **keywords)

        return stand_in

    def to_json(self) -> dict[str, int]:
        return dict(sorted(self._uses.items()))
