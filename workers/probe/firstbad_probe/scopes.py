"""Where the program is: the phase, the module that runs, and whose backward runs.

In forward the modules say so themselves, through hooks. In backward it is told
from the autograd node that runs: nodes are numbered as forward makes them, so
the scope in force at a number is the scope of the node. Recomputed modules
speak for themselves again. Seconds are written down at every change of scope.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from firstbad_probe.activities import Clock
from firstbad_probe.components import OUTSIDE, Scope

BUILD, FORWARD, BACKWARD, STEP = "build", "forward", "backward", "step"

# Nodes that accumulate into a parameter are not numbered: they carry the highest number there is.
_UNNUMBERED = 2**63

_node = torch._C._current_autograd_node
_records_gradients = torch.is_grad_enabled
_forward_mode = torch._C._is_fwd_grad_enabled
_next_number = torch._C._autograd._get_sequence_nr


class Scopes:
    """The stack of running modules and the memory of who made which autograd node."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.phase = BUILD
        self.step = 0
        self.parameters: dict[int, Scope] = {}  #: id of a parameter to the scope of its module
        self._stack: list[Scope] = []
        self._ground = OUTSIDE  #: the scope while no module runs
        self._numbers: list[int] = [0]
        self._made_by: list[Scope] = [OUTSIDE]
        self._last_backward = OUTSIDE
        self.host_depth = 0  #: above 0 while tensors are made that would stay in host memory

    def enter(self, scope: Scope) -> None:
        self._stack.append(scope)
        self._note(scope)

    def leave(self, scope: Scope) -> None:
        """Back to the scope around; an interrupted module inside is left too."""
        stack = self._stack
        while stack:
            if stack.pop() is scope:
                break
        self._note(stack[-1] if stack else self._outside())

    def _outside(self) -> Scope:
        """The scope while no module runs: in a replay, that of the node that replays."""
        node = _node() if self.phase == BACKWARD else None
        return self._ground if node is None else self._scope_of(node)

    def note_replay(self) -> None:
        """A replay's first node has been made by now: it is nobody else's."""
        scope = self.here()
        number = _next_number() - 1
        if self._numbers[-1] < number:
            self._numbers.append(number)
            self._made_by.append(scope)

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        self.enter(scope)
        try:
            yield
        finally:
            self.leave(scope)

    @contextmanager
    def on_host(self, scope: Scope) -> Iterator[None]:
        """Tensors made inside are host memory, as those of a data loader are on a GPU machine."""
        self.host_depth += 1
        try:
            with self.inside(scope):
                yield
        finally:
            self.host_depth -= 1

    def stand_on(self, ground: Scope) -> None:
        """What operations outside every module belong to from now on."""
        self._ground = ground
        if not self._stack:
            self._note(ground)

    def begin_phase(self, phase: str, ground: Scope) -> None:
        self.phase = phase
        self._last_backward = ground
        self.stand_on(ground)
        self.clock.switch(self.here().activity, phase)

    def forget_nodes(self) -> None:
        """Between steps no node is alive."""
        self._numbers, self._made_by = [0], [OUTSIDE]

    def _note(self, scope: Scope) -> None:
        number = _next_number()
        if self._numbers[-1] == number:
            self._made_by[-1] = scope
        else:
            self._numbers.append(number)
            self._made_by.append(scope)
        self.clock.switch(scope.activity, self.phase)

    @property
    def in_backward_node(self) -> bool:
        """Autograd runs a node now, so that a module that runs is recomputed."""
        return _node() is not None

    @property
    def replaying(self) -> bool:
        """Forward runs again inside a node of backward (recompute), within a module or outside of all.

        Nothing else records gradients there: backward itself is not differentiated. A custom function's
        forward does not record them either, but switches the other kind (forward mode) off too,
        which backward leaves on.
        """
        if self.phase != BACKWARD or _node() is None:
            return False
        return _records_gradients() or not _forward_mode()

    def here(self) -> Scope:
        """The scope of the operation that runs now."""
        if self._stack:
            return self._stack[-1]
        if self.phase != BACKWARD:
            return self._ground
        node = _node()
        if node is None:
            return self._last_backward
        scope = self._scope_of(node)
        if scope is not self._last_backward:
            self._last_backward = scope
            self.clock.switch(scope.activity, BACKWARD)
        return scope

    def _scope_of(self, node: Any) -> Scope:
        number = node._sequence_nr()
        if number >= _UNNUMBERED:
            variable = getattr(node, "variable", None)
            return self.parameters.get(id(variable), self._last_backward)
        return self._made_by[bisect_right(self._numbers, number) - 1]
