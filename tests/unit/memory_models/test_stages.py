"""Sums that many jobs share, and the named parts of one: both say the same, whatever was asked before."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings

from memory_models import decoder, experts, loss, unfused, vision
from memory_models.breakdown import Category, Component
from memory_models.choices import micro_batch
from memory_models.chunks import first_chunk_tensors
from memory_models.comparison import differences, switched
from memory_models.estimation import Estimate, estimate
from memory_models.instants import Moment, stage_activations
from memory_models.job import TrainingJob
from memory_models.pipeline import flights
from memory_models.placement import places
from memory_models.stages import stage_states
from memory_models.tensors import Bundle, Kept
from memory_models.treatments import layer_halves, split
from tests.unit.memory_models.jobs import qwen_30b, wide_jobs

drawn = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def forget() -> None:
    """As in a process that has estimated nothing yet."""
    tables = (stage_states, stage_activations, layer_halves, first_chunk_tensors, split, places, flights)
    for table in tables:
        table.cache_clear()


def told(answer: Estimate) -> list[object]:
    """All that an answer says, by rank."""
    return [
        (rank.device_bytes, rank.allocated_bytes, rank.low_bytes, rank.high_bytes, rank.instants)
        for rank in answer.ranks
    ]


@drawn
@given(wide_jobs(), wide_jobs())
def test_what_was_estimated_before_changes_no_answer(first: TrainingJob, second: TrainingJob) -> None:
    forget()
    estimate(first)
    for path, _, value in differences(first, second):
        try:
            between = switched(first, {path: value})
            after_others = told(estimate(between))
        except ValueError:
            continue
        forget()
        assert told(estimate(between)) == after_others, path
        estimate(first)


@drawn
@given(wide_jobs())
def test_the_peak_that_a_search_sees_is_the_widest_sum_of_named_parts(job: TrainingJob) -> None:
    for rank in estimate(job).ranks:
        widest = max(sum(part.bytes for part in instant.parts) for instant in rank.instants)
        assert rank.allocated_bytes == widest == rank.breakdown.total_bytes


@drawn
@given(wide_jobs())
def test_a_micro_batchs_own_choices_say_of_its_tensors_what_the_whole_job_says(job: TrainingJob) -> None:
    micro = micro_batch(job)
    for layer in job.text.kinds:
        assert decoder.mixer_tensors(micro, layer) == decoder.mixer_tensors(job, layer)
        assert decoder.mixer_backward_bytes(micro, layer) == decoder.mixer_backward_bytes(job, layer)
        assert decoder.dense_backward_bytes(micro, layer) == decoder.dense_backward_bytes(job, layer)
        assert unfused.mixer_tensors(micro, layer) == unfused.mixer_tensors(job, layer)
    assert experts.expert_tensors(micro) == experts.expert_tensors(job)
    assert experts.exchange_bytes(micro) == experts.exchange_bytes(job)
    assert experts.backward_bytes(micro) == experts.backward_bytes(job)
    assert loss.loss_bytes(micro) == loss.loss_bytes(job)
    assert loss.output_tensors(micro) == loss.output_tensors(job)
    assert loss.image_merge_bytes(micro) == loss.image_merge_bytes(job)
    assert job.vision is not None
    assert vision.tower_tensors(micro, job.vision) == vision.tower_tensors(job, job.vision)
    assert vision.projector_tensors(micro, job.vision) == vision.projector_tensors(job, job.vision)


def test_inner_stages_hold_the_same_and_differ_by_what_is_in_flight() -> None:
    job = qwen_30b(pipeline=8)
    assert len({*places(job.text, job.layout)}) == 3  # the first, the last, and all between
    inner = estimate(job).ranks[1:-1]
    steps = {a.allocated_bytes - b.allocated_bytes for a, b in pairwise(inner)}
    assert len(steps) == 1
    assert steps.pop() > 0


def test_a_micro_batch_is_given_back_by_the_chunk_that_works_on_it() -> None:
    def kept(size: int) -> Bundle:
        return Bundle.of(Kept(Component.DECODER, "residual", "a*n*h", size))

    moment = Moment(name="backward", waiting=((3, kept(10)), (2, kept(7))), leaving=1, gone=kept(7))
    assert [part.bytes for part in moment.parts()] == [30, 7]
    assert moment.bytes == 37
    assert {part.category for part in moment.parts()} == {Category.ACTIVATIONS}
