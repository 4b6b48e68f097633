"""Import-only stand-ins for packages that need CUDA, where the real one is missing.

A stand-in lets an import line succeed and nothing more: its classes can be
base classes, its functions refuse to be called. It is shown only to importers
that cannot do without; all others, Megatron Core first, keep their own answer
to a missing package, which is the local code that a CPU can run.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch

from firstbad_probe.imports import ImportCallbacks, is_installed
from firstbad_probe.patches import Patches


@dataclass(frozen=True)
class StandIn:
    """Which importers see the stand-in of a package, and what its functions do."""

    root: str
    importers: tuple[str, ...]  #: module prefixes; everyone else still finds nothing
    passes_decorated: bool = False  #: a call gives back the function it decorates (triton.jit)
    answers: dict[str, Any] = field(default_factory=dict)  #: full name to what a call returns


STAND_INS = (
    StandIn(root="transformer_engine", importers=("megatron.bridge", "__main__")),
    # Megatron Core's fusions ask for triton and do without; its state-space and inference code cannot, and of
    # its fusions two could not in the summer of 2025.
    StandIn(
        root="triton",
        importers=(
            "megatron.bridge",
            "megatron.core.fusions.fused_indices_converter",
            "megatron.core.fusions.fused_pad_routing_map",
            "megatron.core.ssm",
            "megatron.core.inference",
            "megatron.core.transformer.custom_layers",
            "megatron.core.transformer.moe.ops",
            "megatron.core.transformer.moe.paged_stash",
            "__main__",
        ),
        passes_decorated=True,
    ),
    StandIn(
        root="modelopt",
        importers=("megatron.bridge", "__main__"),
        answers={
            # No distillation takes place, so no shape is to be adjusted.
            "modelopt.torch.distill.plugins.megatron.get_tensor_shapes_adjust_fn_for_distillation": None
        },
    ),
    StandIn(root="nvidia_resiliency_ext", importers=("megatron.bridge", "__main__")),
    # Its image path is PIL; torchvision serves videos.
    StandIn(root="torchvision", importers=("qwen_vl_utils",)),
)


class StandInModule(ModuleType):
    """A module that has every name: a submodule for a lower-case one, a class for the others."""

    _stand_in: StandIn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        value: Any
        if full_name in self._stand_in.answers:
            answer = self._stand_in.answers[full_name]
            value = lambda *_, **__: answer  # noqa: E731
        elif name[0].isupper():
            # What a decorator is given (triton.Config) is made where a module is imported.
            make = (lambda *_, **__: None) if self._stand_in.passes_decorated else _refuse(full_name)
            value = type(name, (torch.nn.Module,), {"__module__": self.__name__, "__init__": make})
        else:
            value = _make_module(full_name, self._stand_in)
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if not self._stand_in.passes_decorated:
            return _refuse(self.__name__)(*args, **keywords)
        if len(args) == 1 and callable(args[0]) and not keywords:
            return args[0]
        return lambda function: function


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"{name} was called, but its package is not installed: the probe's CPU platform only lets its "
            "import succeed. Switch the feature off in the configuration of the CPU profile, or use a GPU."
        )

    return refuse


def _make_module(name: str, stand_in: StandIn) -> StandInModule:
    module = StandInModule(name)
    module.__path__ = []
    module.__version__ = "0.0.0"  # type: ignore[attr-defined]
    module._stand_in = stand_in
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    return module


class _Finder:
    """Finds a stand-in while an entitled importer is importing, and only then."""

    def __init__(self, stand_ins: dict[str, StandIn]) -> None:
        self._stand_ins = stand_ins
        self.granted = threading.local()

    def find_spec(self, name: str, *_: Any) -> Any:
        root = name.partition(".")[0]
        if root in self._stand_ins and getattr(self.granted, "root", None) == root:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> ModuleType:
        return _make_module(spec.name, self._stand_ins[spec.name.partition(".")[0]])

    def exec_module(self, module: ModuleType) -> None: ...


def install(patches: Patches, callbacks: ImportCallbacks) -> None:
    """Guard the import statement so that each stand-in is seen by its importers alone."""
    missing = {stand_in.root: stand_in for stand_in in STAND_INS if not is_installed(stand_in.root)}
    finder = _Finder(missing)
    sys.meta_path.append(finder)
    import_ = builtins.__import__
    stands_in: dict[str, StandIn | None] = {}

    def guarded(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if name not in stands_in:  # torch imports inside of functions that run for every operation
            stands_in[name] = missing.get(name.partition(".")[0])
        stand_in = stands_in[name] if level == 0 else None
        if stand_in is None:
            return import_(name, globals, locals, fromlist, level)
        importer = (globals or {}).get("__name__", "")
        if not importer.startswith(stand_in.importers):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        patches.use(f"stand-in for {stand_in.root}")
        finder.granted.root = stand_in.root
        try:
            return import_(name, globals, locals, fromlist, level)
        finally:
            finder.granted.root = None

    builtins.__import__ = guarded
    if "torchvision" in missing:
        callbacks.after(
            "transformers.processing_utils", lambda module: _unchecked_video_processor(module, patches)
        )


def _unchecked_video_processor(module: Any, patches: Patches) -> None:
    """Transformers hides its video processors without torchvision, then refuses a real one as unknown."""
    check = module.ProcessorMixin.check_argument_for_proper_class

    def check_argument_for_proper_class(self: Any, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor":
            patches.use("video processor without torchvision")
            return type(argument)
        return check(self, argument_name, argument)

    module.ProcessorMixin.check_argument_for_proper_class = check_argument_for_proper_class
