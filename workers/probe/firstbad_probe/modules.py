"""The model's modules as they run, told by torch's global hooks and by marks on autograd's nodes.

No hook is put on a module itself: capturing CUDA graphs refuses modules that have some, torch's own as well
as Megatron's. Of all modules only landmarks are followed, those at which the component or the activity
changes, and layers. Compiled code is traced without hooks (they end at once while torch compiles), so that
the probe changes no graph; a landmark inside is silent then, and `silent` says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from firstbad_probe.components import Scope
from firstbad_probe.counted_scopes import CountedScopes
from firstbad_probe.handovers import Handovers

_MARK = "firstbad"  #: in a node's metadata
_HOLDERS = (torch.nn.ModuleList, torch.nn.ModuleDict)

BeforeModule = Callable[[torch.nn.Module, tuple[Any, ...]], None]


class RunningModules:
    """Tells the scopes which landmark runs, in forward, in recompute and in backward."""

    def __init__(self, scopes: CountedScopes, handovers: Handovers) -> None:
        self._scopes = scopes
        self._handovers = handovers
        self._landmarks: dict[int, Scope] = {}
        self._before: dict[int, BeforeModule] = {}
        self._kept: list[torch.nn.Module] = []  # an id is a module's only while it lives
        self._handles: list[Any] = []
        self._entered: set[int] = set()
        self._ever: set[int] = set()
        self.silent_since: dict[str, int] = {}  #: path of a landmark that used to run, to the step

    def start(self) -> None:
        if self._handles:
            return
        # torch warns whoever compiles a module; these hooks do not mind to be called for its wrapper.
        warnings.filterwarnings("ignore", message=r"Using `torch\.compile\(module\)` when there are global")
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def follow(self, modules: Sequence[tuple[torch.nn.Module, Scope]]) -> None:
        """A model's modules with their scopes, the root first."""
        self.start()
        for module, scope in landmarks(modules):
            self._kept.append(module)
            self._landmarks[id(module)] = scope

    def call_before(self, module: torch.nn.Module, function: BeforeModule) -> None:
        self._kept.append(module)
        self._before[id(module)] = function

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        identity = id(module)
        before = self._before.get(identity)
        if before is not None:
            before(module, args)
        scope = self._landmarks.get(identity)
        if scope is not None:
            self._entered.add(identity)
            self._mark(args, self._scopes.here())
            self._scopes.enter(scope)

    def _leave(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        scope = self._landmarks.get(id(module))
        if scope is not None:
            self._scopes.leave(scope)
            self._mark(output, scope)

    def _mark(self, value: Any, scope: Scope) -> None:
        """This scope made these tensors: so will their nodes say when backward comes to them."""
        if not self._scopes.follows_modules:
            return
        if isinstance(value, torch.Tensor):
            self._handovers.track(value, scope.component)
            node = value.grad_fn
            # Who marked first made it; the next module only reads it.
            if node is not None and _MARK not in node.metadata:
                node.metadata[_MARK] = True
                backward_of = self._scopes.backward_of
                node.register_prehook(lambda _: backward_of(scope))
        elif isinstance(value, (tuple, list)):
            for item in value:
                self._mark(item, scope)
        elif isinstance(value, dict):
            for item in value.values():
                self._mark(item, scope)

    def end_step(self, step: int) -> None:
        """Landmarks that ran in a step before and did not run in this one are silent since then."""
        for identity in self._ever - self._entered:
            self.silent_since.setdefault(self._landmarks[identity].path, step)
        self._ever |= self._entered
        self._entered.clear()

    def unseen(self) -> list[str]:
        """For people: which modules were not followed."""
        told = []
        never = [scope.path for identity, scope in self._landmarks.items() if identity not in self._ever]
        if never and self._ever:
            told.append(
                f"{len(never)} of {len(self._landmarks)} followed modules never announced themselves "
                f"(first: {never[0]}): not used, compiled, or inside a CUDA graph; what they keep and take "
                "counts as that of the module around them"
            )
        if self.silent_since:
            path, step = min(self.silent_since.items(), key=lambda item: item[1])
            told.append(
                f"{len(self.silent_since)} modules fell silent, from step {step} on (first: {path}): a CUDA "
                "graph replays them, or nothing was given to them; from there on what they keep and take "
                "counts as that of the module around them"
            )
        return told


def landmarks(modules: Sequence[tuple[torch.nn.Module, Scope]]) -> list[tuple[torch.nn.Module, Scope]]:
    """The root, layers, and each module whose component or activity is not that of the module around it."""
    scopes = {scope.path: scope for _, scope in modules}
    root = modules[0][1]
    chosen = []
    for module, scope in modules:
        if isinstance(module, _HOLDERS):
            continue
        around, _, name = scope.path.rpartition(".")
        outer = scopes.get(around, root)
        changes = (outer.component, outer.activity) != (scope.component, scope.activity)
        if scope is root or changes or name.isdigit():
            chosen.append((module, scope))
    return chosen
