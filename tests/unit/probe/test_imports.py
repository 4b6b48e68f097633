"""Callbacks see a module once it is executed, in whatever order it is imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from firstbad_probe.imports import ImportCallbacks


@pytest.fixture
def callbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportCallbacks]:
    (tmp_path / "late_module.py").write_text("def answer():\n    return 1\n")
    (tmp_path / "late_user.py").write_text("from late_module import answer\nvalue = answer()\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = ImportCallbacks()
    found.install()
    yield found
    sys.meta_path.remove(found)
    for name in ("late_module", "late_user"):
        sys.modules.pop(name, None)


def replace_answer(module: ModuleType) -> None:
    module.answer = lambda: 2  # type: ignore[attr-defined]


def test_a_name_is_replaced_before_anyone_can_copy_it(callbacks: ImportCallbacks) -> None:
    callbacks.after("late_module", replace_answer)
    assert importlib.import_module("late_user").value == 2


def test_a_module_that_is_already_there_is_seen_at_once(callbacks: ImportCallbacks) -> None:
    module = importlib.import_module("late_module")
    callbacks.after("late_module", replace_answer)
    assert module.answer() == 2


def test_a_module_that_looks_different_gives_a_note_and_does_not_stop_the_job(
    callbacks: ImportCallbacks,
) -> None:
    callbacks.after("late_module", lambda module: module.missing)
    assert importlib.import_module("late_user").value == 1
    assert callbacks.notes == ["could not see late_module: this release has no missing"]


def test_a_module_that_does_not_exist_is_still_an_import_error(callbacks: ImportCallbacks) -> None:
    callbacks.after("no_such_module_anywhere", replace_answer)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")
