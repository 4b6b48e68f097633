"""Edits of a tree of text files: what a commit of the demo's repository changes.

Here live the mechanics. Which edits there are is told by `chores`, `decoys` and
`culprits`; which of them a history holds, and where, by `scenarios`. No file and
no git is touched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Change:
    """One place of one file: ``old``, which must stand there exactly once, becomes ``new``.

    An empty ``old`` makes the file, an empty ``new`` on such a change's undoing removes it.
    """

    path: str
    old: str
    new: str
    makes_file: bool = False
    removes_file: bool = False

    def apply(self, tree: Mapping[str, str]) -> dict[str, str]:
        """The changed tree. Raises ValueError where the tree is not what the change expects."""
        changed = dict(tree)
        if self.makes_file:
            if self.path in tree:
                raise ValueError(f"{self.path} is there already")
            changed[self.path] = self.new
            return changed
        text = tree.get(self.path, "")
        if self.removes_file:
            if text != self.old:
                raise ValueError(f"{self.path} is not the file that was made")
            del changed[self.path]
            return changed
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path} holds {text.count(self.old)} times, not once: {self.old!r}")
        changed[self.path] = text.replace(self.old, self.new)
        return changed

    def undone(self) -> Change:
        return Change(
            path=self.path,
            old=self.new,
            new=self.old,
            makes_file=self.removes_file,
            removes_file=self.makes_file,
        )


def make_file(path: str, text: str) -> Change:
    return Change(path=path, old="", new=text, makes_file=True)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A named commit-to-be: what it changes, and what its author says of it."""

    name: str
    subject: str
    why: str = ""  #: the body of the commit message
    changes: tuple[Change, ...]

    def apply(self, tree: Mapping[str, str]) -> dict[str, str]:
        changed = dict(tree)
        for change in self.changes:
            changed = change.apply(changed)
        return changed

    def undone(self, subject: str, why: str = "") -> Edit:
        """The edit that takes this one back, as a commit of its own."""
        return Edit(
            name=f"undo {self.name}",
            subject=subject,
            why=why,
            changes=tuple(change.undone() for change in reversed(self.changes)),
        )

    @property
    def only_docs(self) -> bool:
        return all(change.path.endswith(".md") for change in self.changes)
