"""torch's CUDA entry points, answered by the CPU.

Only torch's own names are replaced here, before any job code is imported.
Megatron's are replaced in `megatron`, packages in `stand_ins`.
"""

from __future__ import annotations

import contextlib
import functools
import typing
from collections.abc import Callable
from typing import Any

import torch

from firstbad_probe.patches import Patches

CPU = torch.device("cpu")

_FACTORIES = [
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
]

_TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


class Stream:
    """A stream on which everything is already done, as is true of a CPU."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None: ...


class Event:
    """An event that has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class _DeviceProperties:
    """What a scheduler asks of a device; the figures are an H100's and steer nothing on a CPU."""

    name = "cpu stand-in"
    major, minor = 9, 0
    multi_processor_count = 132
    total_memory = 80 * 2**30


class _TensorType(type):
    """torch.cuda.FloatTensor and its kin: callable, and usable in isinstance."""

    dtype: torch.dtype

    def __call__(cls, data: Any = (), *_: Any, **__: Any) -> torch.Tensor:
        return torch.tensor(data, dtype=cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def names_cuda(device: Any) -> bool:
    """Whether a value of a `device=` argument means a CUDA device (a bare index does)."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


Move = Callable[[torch.Tensor], torch.Tensor]


def install(patches: Patches, *, local_world_size: int, to_device: Move) -> None:
    _python_names()
    _queries(patches, local_world_size)
    _movement(patches, to_device)
    _factories(patches)
    # Compiling for a CPU takes longer than the short runs measured here.
    torch.compile = _identity_compile(patches)
    # One thread: the ranks of a small job share the machine, and sums keep one order.
    torch.set_num_threads(1)


def _python_names() -> None:
    """`typing.override` is newer than Python 3.11 and means nothing at run time."""
    if not hasattr(typing, "override"):
        typing.override = lambda method: method  # type: ignore[attr-defined]


def _identity_compile(patches: Patches) -> Callable[..., Any]:
    def compile_nothing(model: Any = None, *_: Any, **__: Any) -> Any:
        patches.use("torch.compile")
        return model if model is not None else (lambda function: function)

    return compile_nothing


def _queries(patches: Patches, local_world_size: int) -> None:
    cuda = torch.cuda

    def answer(name: str, value: Callable[..., Any]) -> None:
        holder = cuda
        *path, last = name.split(".")
        for part in path:
            holder = getattr(holder, part)
        setattr(holder, last, patches.counted(f"torch.cuda.{name}", lambda *a, **k: value(*a, **k)))

    answer("current_device", lambda: CPU)
    answer("device_count", lambda: local_world_size)
    answer("get_device_capability", lambda *_: (_DeviceProperties.major, _DeviceProperties.minor))
    answer("get_device_properties", lambda *_: _DeviceProperties())
    answer("get_device_name", lambda *_: _DeviceProperties.name)
    answer("is_current_stream_capturing", lambda: False)
    answer("current_stream", lambda *_: Stream())
    answer("default_stream", lambda *_: Stream())
    for name in (
        "set_device",
        "set_stream",
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "ipc_collect",
    ):
        answer(name, lambda *_, **__: None)
    for name in ("nvtx.range_push", "nvtx.range_pop", "nvtx.mark"):
        answer(name, lambda *_, **__: None)
    answer("stream", lambda *_: contextlib.nullcontext())
    answer("device", lambda *_: contextlib.nullcontext())
    # The device's random numbers are the CPU's: its generator makes them all.
    answer("manual_seed", torch.manual_seed)
    answer("get_rng_state", lambda *_, **__: torch.get_rng_state())
    answer("set_rng_state", lambda state, *_, **__: torch.set_rng_state(state))
    cuda.random.get_rng_state = cuda.get_rng_state
    cuda.random.set_rng_state = cuda.set_rng_state
    cuda.Stream, cuda.Event = Stream, Event  # type: ignore[misc, assignment]
    for name, dtype in _TENSOR_TYPES.items():
        setattr(cuda, name, _TensorType(name, (), {"dtype": dtype}))


def _movement(patches: Patches, to_device: Move) -> None:
    """Tensor.cuda, Module.cuda, Tensor.to("cuda") and Tensor.type()."""
    move, name_type, move_module = torch.Tensor.to, torch.Tensor.type, torch.nn.Module.to

    def to(self: torch.Tensor, *args: Any, **keywords: Any) -> torch.Tensor:
        device = args[0] if args else keywords.get("device")
        if isinstance(device, (str, torch.device)) and names_cuda(device):
            patches.use("Tensor.to('cuda')")
            self = to_device(self)
            if args:
                args = (CPU, *args[1:])
            else:
                keywords["device"] = CPU
        return move(self, *args, **keywords)

    def cuda(self: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return to_device(self)

    def module_to(self: torch.nn.Module, *args: Any, **keywords: Any) -> torch.nn.Module:
        if args and names_cuda(args[0]):
            patches.use("Module.to('cuda')")
            args = (CPU, *args[1:])
        if keywords and names_cuda(keywords.get("device")):
            patches.use("Module.to('cuda')")
            keywords["device"] = CPU
        return move_module(self, *args, **keywords)

    def type_(self: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        # Megatron's gradient clipping asserts that gradients are torch.cuda.* tensors.
        answer = name_type(self, *args, **keywords)
        if isinstance(answer, str) and not answer.startswith("torch.cuda."):
            patches.use("Tensor.type")
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    torch.Tensor.to = to  # type: ignore[method-assign, assignment]
    torch.nn.Module.to = module_to  # type: ignore[method-assign, assignment]
    torch.Tensor.type = type_  # type: ignore[method-assign, assignment]
    torch.Tensor.cuda = patches.counted("Tensor.cuda", cuda)  # type: ignore[method-assign]
    torch.Tensor.pin_memory = patches.counted("Tensor.pin_memory", lambda self, *_, **__: self)  # type: ignore[method-assign]
    torch.nn.Module.cuda = patches.counted("Module.cuda", lambda self, *_, **__: self)  # type: ignore[method-assign]


def _factories(patches: Patches) -> None:
    """Factories that are told device="cuda" make CPU tensors, and none pins memory."""
    for name in _FACTORIES:
        setattr(torch, name, _redirected(getattr(torch, name), f"torch.{name}(device='cuda')", patches))


def _redirected(factory: Callable[..., Any], name: str, patches: Patches) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*args: Any, **keywords: Any) -> Any:
        if keywords:
            if names_cuda(keywords.get("device")):
                patches.use(name)
                keywords["device"] = CPU
            if keywords.get("pin_memory"):
                keywords["pin_memory"] = False
        return factory(*args, **keywords)

    return make
