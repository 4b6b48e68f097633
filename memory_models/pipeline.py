"""How many micro-batches are in flight on a pipeline rank, chunk by chunk.

Megatron's schedules run ahead: rank r of p forwards some micro-batches before its first
backward, and their activations wait. Here the schedule is walked, so that chunks of unequal
size (vision tower, loss) are counted as they really coexist. Certainty A for totals (golden
cases with and without interleaving).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Flight:
    """A moment at which a forward pass has just ended and a backward pass begins.

    ``waiting[c]`` micro-batches have their activations alive in virtual chunk ``c``, the one
    just forwarded included; the chunk ``backward`` is about to give its oldest back.
    """

    waiting: tuple[int, ...]
    forward: int
    backward: int


@lru_cache(maxsize=16384)
def flights(
    *, stages: int, rank: int, chunks: int, microbatches: int, group: int, overlap: bool = False
) -> tuple[Flight, ...]:
    """Every distinct moment of one step on pipeline rank ``rank``.

    Without interleaving (chunks == 1) rank r has min(p - r, m) micro-batches in flight. With
    it, warm-up forwards 2(p-r-1) + (v-1)*g chunk passes, and one more with
    overlapped expert exchange, then forward and backward alternate.
    """
    if chunks == 1:
        count = min(stages - rank, microbatches)
        return (Flight((count,), 0, 0),)
    # The pattern repeats; a few rounds show every moment of it.
    microbatches = min(microbatches, 4 * max(stages, group))
    order = _forward_order(chunks, microbatches, group)
    total = len(order)
    warmup = min(total, 2 * (stages - rank - 1) + (chunks - 1) * group + overlap)
    waiting = [0] * chunks
    for chunk in order[:warmup]:
        waiting[chunk] += 1
    seen: dict[Flight, None] = {}
    backward_order = [chunks - 1 - chunk for chunk in order]
    for step, backward in enumerate(backward_order):
        position = warmup + step
        forward = order[min(position, total - 1)]
        if position < total:
            waiting[forward] += 1
        if waiting[backward] > 0:
            seen.setdefault(Flight(tuple(waiting), forward, backward))
        waiting[backward] -= 1
    return tuple(_dominant(seen))


def _forward_order(chunks: int, microbatches: int, group: int) -> list[int]:
    """The chunk of each forward pass: groups of ``group`` micro-batches go through all chunks in turn."""
    order: list[int] = []
    for start in range(0, microbatches, group):
        size = min(group, microbatches - start)
        for chunk in range(chunks):
            order += [chunk] * size
    return order


def _dominant(moments: dict[Flight, None]) -> list[Flight]:
    """Moments that no other with the same backward chunk exceeds everywhere: only they can be a peak."""
    best: list[Flight] = []
    for moment in moments:
        rivals = [other for other in best if other.backward == moment.backward]
        if any(all(a <= b for a, b in zip(moment.waiting, other.waiting, strict=True)) for other in rivals):
            continue
        best = [
            other
            for other in best
            if other.backward != moment.backward
            or not all(a <= b for a, b in zip(other.waiting, moment.waiting, strict=True))
        ]
        best.append(moment)
    return best
