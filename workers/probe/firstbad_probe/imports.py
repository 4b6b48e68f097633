"""Callbacks that run right after a module was imported, in whatever order the script imports.

The finder here only delegates: where a module comes from stays the decision of
the job's own path. What to do with a module is the business of its callback.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

Callback = Callable[[Any], None]


class ImportCallbacks:
    """A meta path finder that lets callbacks see chosen modules once they are executed.

    A callback that raises AttributeError is not allowed to break the job: the
    module of this release looks different, which is noted under its name.
    """

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callback]] = {}
        self._searching: set[str] = set()
        self.notes: list[str] = []

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def after(self, module_name: str, callback: Callback) -> None:
        """Run the callback once the module is imported; at once if it already is."""
        module = sys.modules.get(module_name)
        if module is not None:
            self._run(module, callback)
        else:
            self._callbacks.setdefault(module_name, []).append(callback)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._callbacks or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = self._delegate(name, path, target)
        finally:
            self._searching.discard(name)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        self._follow(name, spec.loader)
        return spec

    def _delegate(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for callback in self._callbacks.get(name, []):
                self._run(module, callback)

        loader.exec_module = exec_module

    def _run(self, module: ModuleType, callback: Callback) -> None:
        try:
            callback(module)
        except AttributeError as error:
            self.notes.append(f"could not see {module.__name__}: this release has no {error.name}")


def is_installed(root: str) -> bool:
    """Whether a top-level package can be imported from the job's path."""
    try:
        return importlib.util.find_spec(root) is not None
    except (ImportError, ValueError):
        return False
