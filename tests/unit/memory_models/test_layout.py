"""Which layers stand on which stage, and how many micro-batches wait there."""

from __future__ import annotations

import pytest

from memory_models.layout import ParallelLayout
from memory_models.pipeline import flights


def counts(layout: ParallelLayout, layers: int) -> list[list[int]]:
    return [[len(chunk.layers) for chunk in rank] for rank in layout.chunks(layers)]


def test_layers_are_shared_evenly_over_stages_and_chunks() -> None:
    assert counts(ParallelLayout(world_size=4, pipeline=4), 8) == [[2]] * 4
    assert counts(ParallelLayout(world_size=4, pipeline=2, virtual_pipeline=2), 8) == [[2, 2]] * 2


def test_the_first_stage_can_be_made_lighter() -> None:
    layout = ParallelLayout(world_size=2, pipeline=2, first_stage_layers=17, last_stage_layers=23)
    assert counts(layout, 40) == [[17], [23]]


def test_embedding_and_loss_can_count_as_layers() -> None:
    layout = ParallelLayout(world_size=4, pipeline=4, embedding_as_layer=True, loss_as_layer=True)
    assert counts(layout, 6) == [[1], [2], [2], [1]]


def test_a_custom_layout_is_expanded() -> None:
    layout = ParallelLayout(world_size=2, pipeline=2, custom="Et*3|(tt|)*2,mL")
    assert counts(layout, 7) == [[3, 2], [2, 0]]
    chunks = layout.chunks(7, True)
    assert chunks[1][1].extra_prediction
    assert chunks[1][1].last


def test_a_custom_layout_with_the_wrong_number_of_layers_is_refused() -> None:
    layout = ParallelLayout(world_size=2, pipeline=2, custom="Et|tL")
    with pytest.raises(ValueError, match="places 2 layers, but the model has 3"):
        layout.chunks(3)


def test_a_world_that_does_not_divide_shows_the_product() -> None:
    with pytest.raises(ValueError, match="etp 2 x ep 8 x pp 1 = 16"):
        ParallelLayout(world_size=8, expert=8, expert_tensor=2)


@pytest.mark.parametrize(("rank", "waiting"), [(0, 4), (1, 3), (3, 1)])
def test_without_interleaving_rank_r_of_p_has_p_minus_r_in_flight(rank: int, waiting: int) -> None:
    (moment,) = flights(stages=4, rank=rank, chunks=1, microbatches=16, group=4)
    assert moment.waiting == (waiting,)


def test_few_micro_batches_bound_what_is_in_flight() -> None:
    (moment,) = flights(stages=8, rank=0, chunks=1, microbatches=3, group=8)
    assert moment.waiting == (3,)


def test_interleaving_keeps_2p_minus_1_of_the_first_chunk_and_29_of_32_on_the_last_rank() -> None:
    first = flights(stages=4, rank=0, chunks=8, microbatches=64, group=4)
    assert max(moment.waiting[0] for moment in first) == 8
    last = flights(stages=4, rank=3, chunks=8, microbatches=64, group=4)
    assert max(sum(moment.waiting) for moment in last) == 29
