"""Every scenario and seed gives a history with one answer: decoys undone, the culprit to be seen."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from firstbad.demo import DEFAULT_SCENARIO, SCENARIOS, DemoPlan, plan
from firstbad.demo.chores import CODE, DOCUMENTATION
from firstbad.demo.decoys import DecoyKind

SEEDS = range(51)
PLANS = [plan(scenario, seed) for scenario in SCENARIOS for seed in SEEDS]


def active_kinds(history: DemoPlan, index: int) -> set[DecoyKind]:
    return {decoy.kind for decoy in history.decoys if decoy.first <= index < decoy.undone}


@cache
def is_python(text: str) -> bool:
    try:
        compile(text, "module", "exec")
    except SyntaxError:
        return False
    return True


def compiles(tree: dict[str, str]) -> bool:
    return all(is_python(text) for path, text in tree.items() if path.endswith(".py"))


def test_the_same_scenario_and_seed_give_the_same_plan() -> None:
    assert plan("vision", 7) == plan("vision", 7)
    assert plan("vision", 7) != plan("vision", 8)


def test_an_unknown_scenario_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no scenario 'optimizer'; there are experts, vision"):
        plan("optimizer")


def test_the_default_scenario_is_experts() -> None:
    assert DEFAULT_SCENARIO == "experts"
    assert plan().scenario == "experts"


def test_a_range_holds_at_least_24_suspects() -> None:
    assert min(history.bad - history.good for history in PLANS) >= 24


def test_every_commit_of_every_plan_applies_and_changes_something() -> None:
    for history in PLANS:
        trees = history.trees()
        assert len(trees) == len(history.commits) + 1
        assert all(before != after for before, after in pairwise(trees))


def test_every_kind_of_decoy_is_there_once_and_undone_some_commits_later() -> None:
    for history in PLANS:
        assert {decoy.kind for decoy in history.decoys} == set(DecoyKind)
        assert len(history.decoys) == len(DecoyKind)
        for decoy in history.decoys:
            assert history.good < decoy.first < decoy.undone - 1
            assert decoy.undone < history.bad


def test_the_bad_end_is_the_good_end_with_the_culprit_and_harmless_commits() -> None:
    for history in PLANS:
        harmless = {edit.name for edit in (*CODE, *DOCUMENTATION)}
        tree = history.trees()[history.good + 1]
        for index, edit in enumerate(history.commits):
            if index > history.good and (edit.name in harmless or index == history.culprit):
                tree = edit.apply(tree)
        assert tree == history.trees()[-1]


def test_two_adjacent_commits_do_not_import() -> None:
    for history in PLANS:
        (block,) = (decoy for decoy in history.decoys if decoy.kind is DecoyKind.BROKEN_IMPORT)
        assert block.undone - block.first == 2
        assert not history.commits[block.first + 1].only_docs


def test_only_the_block_that_does_not_import_may_fail_to_compile() -> None:
    for history in PLANS:
        for index, tree in enumerate(history.trees()[1:]):
            assert compiles(tree) or DecoyKind.BROKEN_IMPORT in active_kinds(history, index)


def test_the_culprit_and_its_parent_can_both_be_judged() -> None:
    for history in PLANS:
        if history.culprit is not None:
            assert not active_kinds(history, history.culprit)
            assert not active_kinds(history, history.culprit - 1)
            assert history.good + 1 < history.culprit < history.bad


def test_the_vision_decoy_comes_before_the_culprit() -> None:
    for history in PLANS:
        (tempting,) = (decoy for decoy in history.decoys if decoy.kind is DecoyKind.VISION_MEMORY)
        assert history.culprit is None or tempting.undone < history.culprit


def test_only_the_scenario_none_plants_nothing() -> None:
    for history in PLANS:
        planted = history.culprit is not None
        assert planted == (history.scenario != "none")
        assert planted == (history.component is not None) == bool(history.mechanism)
        assert history.capacity_bytes > 0


def test_every_mechanism_of_a_scenario_is_drawn_by_some_seed() -> None:
    for scenario, culprits in SCENARIOS.items():
        drawn = {plan(scenario, seed).mechanism for seed in SEEDS} - {""}
        assert drawn == {culprit.edit.name for culprit in culprits}


def test_a_pin_moves_the_lock_and_nothing_else() -> None:
    history = plan("pin", 3)
    assert history.culprit is not None
    (change,) = history.commits[history.culprit].changes
    assert (change.path, change.old, change.new) == (
        "requirements.lock",
        "nightly-photos==1.0\n",
        "nightly-photos==1.1\n",
    )


def test_the_lock_pins_every_package_to_one_version() -> None:
    lines = plan("experts", 0).trees()[0]["requirements.lock"].splitlines()
    names = [line.split("==")[0].lower() for line in lines]
    assert all(line.count("==") == 1 for line in lines)
    assert len(set(names)) == len(names)
    assert {"torch", "megatron-core", "megatron-bridge", "nightly-photos"} <= set(names)


def test_harmless_commits_may_come_in_any_order() -> None:
    tree = plan("none", 0).trees()[0]
    forwards, backwards = tree, tree
    for edit in (*CODE, *DOCUMENTATION):
        forwards = edit.apply(forwards)
    for edit in reversed((*CODE, *DOCUMENTATION)):
        backwards = edit.apply(backwards)
    assert forwards == backwards
