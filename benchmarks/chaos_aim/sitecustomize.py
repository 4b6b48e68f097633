"""Aimed faults: a process of firstbad kills or freezes itself at a named point of its work.

Every Python process under `benchmarks.chaos` finds this on its PYTHONPATH; what is shipped knows nothing.
A point is an operation and a moment: ``enter``, ``commit`` (all is written, nothing is committed), ``return``
(all is committed, the caller does not know it yet). Whoever first reaches a point for which there is a file
in the folder of aims takes the file, and sends itself the signal in it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

AIMS = os.environ.get("FIRSTBAD_CHAOS_AIMS", "")
STORAGE = "bisection.adapters.storage"
#: Method by module and class: the operation that it is.
OPERATIONS: dict[str, dict[str, dict[str, str]]] = {
    f"{STORAGE}.claims": {
        "Claims": {"claim": "claim", "beat": "beat", "complete": "write", "hand_back": "hand_back"}
    },
    f"{STORAGE}.trials": {"Trials": {"apply": "decide", "mark_published": "mark"}},
    f"{STORAGE}.bisections": {"Bisections": {"create": "create", "move": "move"}},
    "bisection.adapters.queue": {"Queue": {"_send": "publish"}},
    f"{STORAGE}.database": {"Database": {}},
}
_current = threading.local()


def reach(point: str) -> None:
    """Take the aim at this point, if there is one, and do what it says."""
    aim = os.path.join(AIMS, point)
    taken = os.path.join(AIMS, f"taken-{point}-{os.getpid()}")
    try:
        os.rename(aim, taken)
    except OSError:
        return
    with open(taken, encoding="utf-8") as file:
        os.kill(os.getpid(), int(file.read()))


def _wrapped(operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        before = getattr(_current, "operation", "")
        _current.operation = operation
        try:
            reach(f"{operation}.enter")
            result = method(*arguments, **named)
            reach(f"{operation}.return")
            return result
        finally:
            _current.operation = before

    return wrapper


def _committing(write: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def wrapper(*arguments: Any) -> Iterator[Any]:
        with write(*arguments) as connection:
            yield connection
            operation = getattr(_current, "operation", "")
            if operation:
                reach(f"{operation}.commit")

    return wrapper


def _aim(module: ModuleType) -> None:
    for class_name, methods in OPERATIONS[module.__name__].items():
        owner = getattr(module, class_name)
        for method, operation in methods.items():
            setattr(owner, method, _wrapped(operation, getattr(owner, method)))
        if class_name == "Database":
            owner.write = _committing(owner.write)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds our modules as everybody does, and wraps their methods once they are there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in OPERATIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _aim(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if AIMS:
    sys.meta_path.insert(0, _Finder())
