"""Edited copies of installed packages, laid over the real ones by the import path.

Only the folders on the way to an edited file are made; all else in them is a link to what is
installed, so that a copy of Megatron Core costs a few hundred links. Nothing installed is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.injected.injection import Edit

TRAINING = "train/"


def edited_packages(edits: Sequence[Edit], site_packages: Path, folder: Path) -> None:
    """Make ``folder`` a place for the front of the import path that holds the edited packages.

    Raises ValueError for an edit that does not fit the installed file, FileNotFoundError without one.
    """
    texts: dict[str, str] = {}
    for edit in edits:
        if not edit.path.startswith(TRAINING):
            text = texts.get(edit.path) or (site_packages / edit.path).read_text(encoding="utf-8")
            texts[edit.path] = edit.apply(text)
    for path, text in texts.items():
        _copy_folders(Path(path).parent, site_packages, folder)
        target = folder / path
        target.unlink()
        target.write_text(text, encoding="utf-8")


def edited_training(edits: Sequence[Edit], tree: dict[str, str]) -> dict[str, str]:
    """The demo's training with the edits that lie in it. Raises ValueError where one does not fit."""
    changed = dict(tree)
    for edit in edits:
        if edit.path.startswith(TRAINING):
            path = edit.path.removeprefix(TRAINING)
            changed[path] = edit.apply(changed[path])
    return changed


def _copy_folders(wanted: Path, site_packages: Path, folder: Path) -> None:
    """Real folders down to ``wanted``, from the first regular package on filled with links."""
    inside = False
    for parent in [*reversed(wanted.parents), wanted]:
        if parent == Path():
            continue
        inside = inside or (site_packages / parent / "__init__.py").exists()
        copy = folder / parent
        if copy.is_symlink():
            copy.unlink()
        if copy.exists():
            continue
        copy.mkdir(parents=True)
        if inside:  # a namespace package is spread over the path as it is
            for entry in (site_packages / parent).iterdir():
                # Bytecode of the installed file must not be taken for that of the edited one.
                if entry.name != "__pycache__":
                    (copy / entry.name).symlink_to(entry.absolute())
