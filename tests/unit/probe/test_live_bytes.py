"""Bytes sit in exactly one cell, and the remembered peak learns what its blocks turned out to be."""

from __future__ import annotations

import pytest

from firstbad_probe.live_bytes import ACTIVATIONS, OPTIMIZER_STATES, TEMPORARY, LiveBytes, rounded, shared

EXPERTS = ("experts", ACTIVATIONS)
VISION = ("vision", ACTIVATIONS)


def remember(live: LiveBytes) -> None:
    live.remember_summit(step=0, phase="forward", instant="here")


def test_sizes_are_rounded_as_the_caching_allocator_rounds_them() -> None:
    assert [rounded(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]


def test_a_shared_block_is_split_exactly_and_the_remainder_is_told() -> None:
    parts = shared(1000, {EXPERTS: 600, VISION: 300}, ("runtime", ACTIVATIONS))
    assert parts == ((EXPERTS, 600), (VISION, 300), (("runtime", ACTIVATIONS), 100))


def test_shares_that_exceed_their_block_are_refused() -> None:
    with pytest.raises(AssertionError, match="exceed"):
        shared(1000, {EXPERTS: 600, VISION: 500}, ("runtime", ACTIVATIONS))


def test_cells_sum_to_the_total_whatever_comes_and_goes() -> None:
    live = LiveBytes()
    first = live.add(512, ((EXPERTS, 512),))
    live.add(1024, ((EXPERTS, 24), (VISION, 1000)))
    live.remove(first)
    assert live.cells == {EXPERTS: 24, VISION: 1000}
    assert live.total_bytes == sum(live.cells.values()) == 1024


def test_an_activation_that_dies_in_its_own_phase_was_temporary_at_the_peak() -> None:
    live = LiveBytes()
    block = live.add(512, ((EXPERTS, 512),))
    remember(live)
    live.remove(block)
    assert live.peak.cells == {EXPERTS: 0, ("experts", TEMPORARY): 512}


def test_an_activation_that_lives_into_backward_was_one_at_the_peak() -> None:
    live = LiveBytes()
    block = live.add(512, ((EXPERTS, 512),))
    remember(live)
    live.interval += 1
    live.remove(block)
    assert live.peak.cells == {EXPERTS: 512}


def test_what_was_made_after_the_peak_does_not_change_it() -> None:
    live = LiveBytes()
    live.add(1024, ((VISION, 1024),))
    remember(live)
    later = live.add(512, ((EXPERTS, 512),))
    live.move(later, ((("experts", OPTIMIZER_STATES), 512),))
    live.remove(later)
    assert live.peak.cells == {VISION: 1024}


def test_a_block_that_proves_to_be_a_state_is_one_in_the_peak_too() -> None:
    live = LiveBytes()
    block = live.add(512, ((("runtime", TEMPORARY), 512),))
    remember(live)
    live.move(block, ((("experts", OPTIMIZER_STATES), 512),))
    assert live.peak.cells[("experts", OPTIMIZER_STATES)] == 512
    assert sum(live.peak.cells.values()) == live.peak.allocated_bytes == 512


def test_a_block_cannot_be_moved_to_parts_of_another_size() -> None:
    live = LiveBytes()
    block = live.add(512, ((EXPERTS, 512),))
    with pytest.raises(AssertionError, match="512"):
        live.move(block, ((EXPERTS, 511),))
    assert live.cells == {EXPERTS: 512}


def test_every_phase_has_a_summit_of_its_own_and_the_highest_is_the_peak() -> None:
    live = LiveBytes()
    kept = live.add(512, ((EXPERTS, 512),))
    live.remember_summit(step=0, phase="forward", instant="here")
    live.interval += 1
    live.add(256, ((VISION, 256),))
    live.remember_summit(step=0, phase="backward", instant="there")
    live.move(kept, ((("experts", OPTIMIZER_STATES), 512),))
    assert live.peak is live.summits["backward"]
    assert live.peak.cells == {EXPERTS: 0, VISION: 256, ("experts", OPTIMIZER_STATES): 512}
    assert live.summits["forward"].cells == {EXPERTS: 0, ("experts", OPTIMIZER_STATES): 512}
    assert not live.at_new_summit("backward")
    assert live.at_new_summit("forward")
