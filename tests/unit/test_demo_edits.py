"""An edit changes exactly the place that it names, and can be taken back."""

from __future__ import annotations

import pytest

from firstbad.demo.edits import Change, Edit, make_file

TREE = {"a.py": "one\ntwo\n"}
SWAP = Edit(
    name="swap",
    subject="Swap",
    changes=(Change(path="a.py", old="one", new="uno"), make_file("b.py", "new\n")),
)


def test_an_edit_and_its_undoing_leave_the_tree_as_it_was() -> None:
    changed = SWAP.apply(TREE)
    assert changed == {"a.py": "uno\ntwo\n", "b.py": "new\n"}
    assert SWAP.undone("Swap back").apply(changed) == TREE


def test_a_change_whose_text_is_missing_is_refused_and_changes_nothing() -> None:
    with pytest.raises(ValueError, match=r"a\.py holds 0 times"):
        Change(path="a.py", old="three", new="drei").apply(TREE)
    assert TREE == {"a.py": "one\ntwo\n"}


def test_a_change_whose_text_stands_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="2 times, not once"):
        Change(path="a.py", old="o", new="0").apply(TREE)


def test_a_file_is_not_made_twice_nor_removed_when_it_has_changed() -> None:
    with pytest.raises(ValueError, match="is there already"):
        make_file("a.py", "").apply(TREE)
    with pytest.raises(ValueError, match="is not the file that was made"):
        make_file("a.py", "other").undone().apply(TREE)
