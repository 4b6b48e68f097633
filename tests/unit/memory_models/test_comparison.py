"""Two jobs compared: the delta, and the keys that explain it."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings

from memory_models.breakdown import Component
from memory_models.comparison import GROUPS, KERNELS, TOGETHER, compare, differences, group_of, switched
from memory_models.estimation import estimate
from memory_models.job import Granularity, Recompute, TrainingJob
from memory_models.shapes import ImageLoad
from tests.unit.memory_models.jobs import qwen_30b, small_jobs

FULL = Recompute(granularity=Granularity.FULL)


def test_equal_jobs_differ_in_nothing() -> None:
    answer = compare(qwen_30b(), qwen_30b())
    assert answer.delta == {}
    assert answer.keys == ()


def test_one_key_explains_the_whole_delta() -> None:
    before, after = qwen_30b(), qwen_30b(micro=2)
    after = replace(after, batch=replace(after.batch, total=before.batch.total))
    answer = compare(before, after)
    (effect,) = answer.keys
    assert effect.key == "train.micro_batch_size"
    assert effect.delta_bytes == effect.last_delta_bytes == answer.delta_bytes > 0


def test_an_expert_layout_that_shrinks_raises_the_experts_only() -> None:
    answer = compare(qwen_30b(expert=8), qwen_30b(expert=4))
    assert [effect.key for effect in answer.keys] == ["model.expert_model_parallel_size"]
    assert {component for component, _ in answer.delta} == {Component.EXPERTS}
    assert answer.delta_bytes > 0


def test_keys_that_act_together_are_told_apart() -> None:
    before = qwen_30b()
    more = replace(before, batch=replace(before.batch, micro=2, images=ImageLoad(patches=8192)))
    answer = compare(before, more)
    assert {effect.key for effect in answer.keys} == {"train.micro_batch_size", "dataset images", TOGETHER}
    assert sum(effect.delta_bytes or 0 for effect in answer.keys) == answer.delta_bytes


def test_a_key_that_cannot_be_switched_alone_has_no_share_of_its_own() -> None:
    before = qwen_30b(world_size=8)
    after = replace(
        before, layout=replace(before.layout, world_size=16, expert=16), batch=replace(before.batch, total=32)
    )
    effects = {effect.key: effect for effect in compare(before, after).keys}
    assert effects["model.expert_model_parallel_size"].delta_bytes is None


def test_keys_of_one_part_are_switched_together_where_none_can_be_alone() -> None:
    before = qwen_30b(world_size=8)
    layout = replace(before.layout, world_size=16, expert=16, pipeline=1)
    after = replace(before, layout=layout, recompute=FULL)
    answer = compare(before, after)
    effects = {effect.key: effect for effect in answer.keys}
    assert effects["model.expert_model_parallel_size"].delta_bytes is None
    groups = {group.name: group for group in answer.groups}
    assert groups["parallel layout"].keys == ("world size", "model.expert_model_parallel_size")
    assert (groups["parallel layout"].delta_bytes or 0) < 0
    alone = estimate(replace(before, layout=layout)).worst.allocated_bytes
    assert groups["parallel layout"].delta_bytes == alone - answer.before.worst.allocated_bytes
    assert groups["recompute and offload"].delta_bytes == effects["model.recompute_granularity"].delta_bytes


def test_groups_are_told_only_where_one_has_several_keys() -> None:
    before = qwen_30b()
    assert compare(before, replace(before, recompute=FULL)).groups == ()


def test_every_field_of_a_job_belongs_to_a_group() -> None:
    grouped = [field for fields in GROUPS.values() for field in fields]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) < set(TrainingJob.__dataclass_fields__)
    assert group_of("cross_entropy") == KERNELS


def test_a_comparison_is_json() -> None:
    answer = json.loads(json.dumps(compare(qwen_30b(), qwen_30b(micro=2)).to_json()))
    assert answer["delta_bytes"] == sum(row["bytes"] for row in answer["delta"])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(small_jobs(), small_jobs())
def test_switching_every_difference_turns_one_job_into_the_other(
    one: TrainingJob, other: TrainingJob
) -> None:
    delta = compare(one, other)
    assert sum(delta.delta.values()) == delta.delta_bytes
    assert sum(effect.delta_bytes or 0 for effect in delta.keys) == delta.delta_bytes or len(delta.keys) < 2
    assert not delta.groups or sum(group.delta_bytes or 0 for group in delta.groups) == delta.delta_bytes
    assert switched(one, {path: new for path, _, new in differences(one, other)}) == other
    for path, old, new in differences(one, other):
        assert old != new
        assert path.split(".")[0] in TrainingJob.__dataclass_fields__
        assert switched(one, {path: old}) == one
