"""What counts as a difference between two resolved configurations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bisection.configuration_delta import KeyChange, ValueType, configuration_delta, flatten, show_value


def keys(changes: tuple[KeyChange, ...]) -> list[str]:
    return [change.key for change in changes]


def test_a_changed_an_added_and_a_removed_key_are_told_apart() -> None:
    before = {"model": {"tp": 1, "old": "x"}}
    after = {"model": {"tp": 2, "new": None}}
    changes = configuration_delta(before, after)
    assert [(c.key, c.before, c.after, c.before_type, c.after_type) for c in changes] == [
        ("model.new", None, None, ValueType.ABSENT, ValueType.NULL),
        ("model.old", "x", None, ValueType.STRING, ValueType.ABSENT),
        ("model.tp", 1, 2, ValueType.INTEGER, ValueType.INTEGER),
    ]
    assert show_value(changes[0].before, changes[0].before_type) == "(absent)"
    assert show_value(changes[0].after, changes[0].after_type) == "null"


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), ("1", 1), ([1], [True])])
def test_equal_to_python_is_not_equal_to_a_configuration(before: object, after: object) -> None:
    assert keys(configuration_delta({"a": before}, {"a": after})) == ["a"]


def test_where_a_run_writes_and_listens_is_no_difference() -> None:
    before = {
        "dist": {"master_port": 29500},
        "checkpoint": {"save": "/run/a/ckpt"},
        "logger": {"tensorboard_dir": "/run/a/tb", "wandb_exp_name": "a"},
    }
    after = {
        "dist": {"master_port": 31017},
        "checkpoint": {"save": "/run/b/ckpt"},
        "logger": {"tensorboard_dir": "/run/b/tb", "wandb_exp_name": "b"},
    }
    assert configuration_delta(before, after) == ()


def test_a_data_path_is_compared_and_the_runs_own_folder_in_it_is_not() -> None:
    before = {"data": {"images": "/work-1/tree/images", "list": "/data/v1/train.json"}}
    after = {"data": {"images": "/work-2/tree/images", "list": "/data/v2/train.json"}}
    changes = configuration_delta(before, after, folders_before=["/work-1"], folders_after=["/work-2/"])
    assert keys(changes) == ["data.list"]


def test_path_segments_that_a_run_invented_and_object_addresses_are_no_difference() -> None:
    before = {"f": "/var/tmpx8_1/a.json", "g": "/cache/0a1b2c3d4e/x", "h": "<fn at 0x7fdeadbeef00>"}
    after = {"f": "/var/tmpq77k/a.json", "g": "/cache/ffeeddccbb/x", "h": "<fn at 0x7f0000000010>"}
    assert configuration_delta(before, after) == ()


def test_two_seeds_are_a_difference_for_real() -> None:
    assert keys(configuration_delta({"rng": {"seed": 1}}, {"rng": {"seed": 2}})) == ["rng.seed"]


def test_lists_are_one_value_unless_they_hold_objects() -> None:
    assert flatten({"a": [1, 2], "b": [{"c": 1}, {"c": 2}], "d": {}}) == {
        "a": [1, 2],
        "b.0.c": 1,
        "b.1.c": 2,
        "d": {},
    }


def test_a_nan_is_the_same_nan() -> None:
    assert configuration_delta({"a": float("nan")}, {"a": float("nan")}) == ()
    assert keys(configuration_delta({"a": float("nan")}, {"a": 1.0})) == ["a"]


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
CONFIGURATIONS = st.recursive(
    LEAVES, lambda inner: st.dictionaries(st.text(max_size=6), inner, max_size=4), max_leaves=12
).map(lambda value: {"root": value})


@settings(deadline=None)
@given(CONFIGURATIONS)
def test_a_configuration_never_differs_from_itself(value: dict[str, Any]) -> None:
    assert configuration_delta(value, value) == ()


@settings(deadline=None)
@given(CONFIGURATIONS, CONFIGURATIONS)
def test_a_delta_read_backwards_is_the_reverse_delta(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert keys(configuration_delta(one, other)) == keys(configuration_delta(other, one))
