"""Where the program is, where backward runs on a thread of its own and every change of scope is a look.

On a GPU, autograd numbers nodes per thread and runs them on another one: nodes are not looked up by number
here. Each module that runs marks the nodes around it instead (`modules`), and they say whose backward comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firstbad_probe.components import OUTSIDE, Scope
from firstbad_probe.scopes import BACKWARD, Scopes

Look = Callable[[Scope, str], None]  #: a scope and a phase


class CountedScopes(Scopes):
    """The same stack of modules; each change is told to `look`, with what ran before it."""

    def __init__(self, clock: Any, look: Look, began: Look | None = None) -> None:
        super().__init__(clock)
        self._look = look
        self._began = began  #: is told what runs from now on
        self._running = OUTSIDE
        self._running_phase = self.phase
        self.follows_modules = True  #: False: only phases are looked at, as long as a step is not watched

    def backward_of(self, scope: Scope) -> None:
        """Autograd comes to a node that this scope made; not while a module is replayed."""
        if self.phase == BACKWARD and not self._stack:
            self._last_backward = scope
            self._note(scope)

    def here(self) -> Scope:
        return self._stack[-1] if self._stack else self._outside()

    def begin_phase(self, phase: str, ground: Scope) -> None:
        before = self._running_phase
        self.phase = phase
        self._last_backward = self._ground = ground
        if phase != before:
            self._change(self.here())
        else:
            self._note(self.here())

    def close(self) -> None:
        """A look at this very moment; the scope goes on."""
        self._change(self.here())

    def _outside(self) -> Scope:
        return self._last_backward if self.phase == BACKWARD else self._ground

    def _note(self, scope: Scope) -> None:
        if self.follows_modules and (scope is not self._running or self.phase != self._running_phase):
            self._change(scope)

    def _change(self, scope: Scope) -> None:
        self._look(self._running, self._running_phase)
        self._running, self._running_phase = scope, self.phase
        if self._began is not None:
            self._began(scope, self.phase)
        self.clock.switch(scope.activity, self.phase)
