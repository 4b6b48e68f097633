"""Numbers that are counted on the device that holds the batch, and read without waiting for it.

On a CPU a number is there at once. On a GPU it is added up in one small tensor a name, copied to the host
when the step ends, and read when the step's last event has passed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class Tally:
    """Sums, and the highest of some, by name."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._waiting: dict[str, torch.Tensor] = {}

    def add(self, name: str, number: int | torch.Tensor) -> None:
        """A tensor has one element."""
        if isinstance(number, torch.Tensor) and number.device.type != "cpu":
            number = number.detach().to(torch.int64)
            held = self._waiting.get(name)
            self._waiting[name] = number if held is None else held + number
        else:
            self._known[name] = self._known.get(name, 0) + int(number)

    def raise_to(self, name: str, number: int | torch.Tensor) -> None:
        if isinstance(number, torch.Tensor) and number.device.type != "cpu":
            number = number.detach().to(torch.int64)
            held = self._waiting.get(name)
            self._waiting[name] = number if held is None else torch.maximum(held, number)
        else:
            self._known[name] = max(self._known.get(name, 0), int(number))

    def take(self) -> Callable[[], dict[str, int]]:
        """What was counted since the last time; to be called when the step has passed on the device."""
        known, waiting = self._known, self._waiting
        self._known, self._waiting = {}, {}
        if not waiting:
            return lambda: known
        names = list(waiting)
        numbers = torch.stack([number.reshape(()) for number in waiting.values()])
        host = torch.zeros(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)

        def read() -> dict[str, int]:
            for name, number in zip(names, host.tolist(), strict=True):
                known[name] = known.get(name, 0) + number
            return known

        return read
