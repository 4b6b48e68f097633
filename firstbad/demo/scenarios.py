"""Which history a scenario and a seed give: the plan of the demo's repository.

Everything is drawn here, from `random.Random(seed)`: the mechanism and the place
of the culprit, of the decoys and of the harmless commits between them. The same
scenario and seed give the same plan. No file and no git is touched here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from firstbad.demo import culprits
from firstbad.demo.chores import CODE, DOCUMENTATION
from firstbad.demo.culprits import Culprit
from firstbad.demo.decoys import DECOYS, DecoyEdit, DecoyKind
from firstbad.demo.edits import Edit
from memory_models.breakdown import Component

#: The culprits that a scenario draws from; none of them: nothing regressed.
SCENARIOS: Mapping[str, tuple[Culprit, ...]] = {
    "experts": culprits.EXPERTS,
    "vision": culprits.VISION,
    "projector": culprits.PROJECTOR,
    "decoder": culprits.DECODER,
    "pin": culprits.PIN,
    "none": (),
}
DEFAULT_SCENARIO = "experts"

#: Commits before the good end, so that the range is not the whole history.
PRELUDE = 2

_TEMPLATES = Path(__file__).parent / "nightly" / "repository"


@dataclass(frozen=True, kw_only=True)
class Decoy:
    """A decoy's place in ``DemoPlan.commits``: active from ``first`` until ``undone``, not included."""

    kind: DecoyKind
    name: str
    first: int
    undone: int


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """A whole history before it is written, and the answer that a bisection of it must give."""

    scenario: str
    seed: int
    start: tuple[Edit, ...]  #: changes to the templates that the first commit holds already
    commits: tuple[Edit, ...]  #: the commits after the first one, oldest first
    good: int  #: index in ``commits`` of the good end
    bad: int  #: index of the bad end, which is the last commit
    culprit: int | None  #: index of the culprit; None: nothing regressed
    component: Component | None  #: where the culprit's bytes go
    mechanism: str  #: name of the culprit's edit; "" where there is none
    decoys: tuple[Decoy, ...]
    capacity_bytes: int  #: the simulated capacity of a trial

    def trees(self) -> list[dict[str, str]]:
        """Path to text after the first commit, and after each of ``commits``."""
        tree = templates()
        for edit in self.start:
            tree = edit.apply(tree)
        trees = [tree]
        for edit in self.commits:
            trees.append(edit.apply(trees[-1]))
        return trees


def plan(scenario: str = DEFAULT_SCENARIO, seed: int = 0) -> DemoPlan:
    """Draw a history. Raises ValueError for a scenario that there is not."""
    if scenario not in SCENARIOS:
        raise ValueError(f"no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    draw = random.Random(seed)
    choices = SCENARIOS[scenario]
    culprit = draw.choice(choices) if choices else None
    chosen = [_decoy_of(kind, culprit, draw) for kind in DecoyKind]

    chores = draw.sample(CODE, k=draw.randint(10, len(CODE)))
    notes = draw.sample(DOCUMENTATION, k=draw.randint(8, len(DOCUMENTATION)))
    inside_block, *harmless = chores
    harmless += notes
    draw.shuffle(harmless)
    prelude, first, last, *harmless = harmless[:PRELUDE], *harmless[PRELUDE:]

    units = [_window(decoy, inside_block, harmless, draw) for decoy in chosen]
    draw.shuffle(units)
    if culprit is not None:
        # After the vision memory was taken back, or the decoy would be none.
        tempting = next(
            index for index, unit in enumerate(units) if unit[0] is _edit(chosen, DecoyKind.VISION_MEMORY)
        )
        units.insert(draw.randint(tempting + 1, len(units)), [culprit.edit])
    for edit in harmless:
        units.insert(draw.randint(0, len(units)), [edit])
    commits = [*prelude, first, *(edit for unit in units for edit in unit), last]
    return DemoPlan(
        scenario=scenario,
        seed=seed,
        start=culprit.start if culprit else (),
        commits=tuple(commits),
        good=PRELUDE - 1,
        bad=len(commits) - 1,
        culprit=commits.index(culprit.edit) if culprit else None,
        component=culprit.component if culprit else None,
        mechanism=culprit.edit.name if culprit else "",
        decoys=tuple(_placed(decoy, commits) for decoy in chosen),
        capacity_bytes=culprit.capacity_bytes if culprit else culprits.NOTHING_REGRESSED_CAPACITY_BYTES,
    )


def _decoy_of(kind: DecoyKind, culprit: Culprit | None, draw: random.Random) -> DecoyEdit:
    clipped = culprit is None or culprit.clipped
    return draw.choice([decoy for decoy in DECOYS if decoy.kind is kind and (clipped or not decoy.clipped)])


def _edit(chosen: list[DecoyEdit], kind: DecoyKind) -> Edit:
    return next(decoy.edit for decoy in chosen if decoy.kind is kind)


def _undoing(decoy: DecoyEdit) -> Edit:
    return decoy.edit.undone(decoy.undo_subject)


def _window(decoy: DecoyEdit, inside_block: Edit, harmless: list[Edit], draw: random.Random) -> list[Edit]:
    """The decoy, what comes while it lasts, and its undoing. Takes from ``harmless``."""
    if decoy.kind is DecoyKind.BROKEN_IMPORT:
        between = [inside_block]
    else:
        between = [harmless.pop() for _ in range(draw.randint(1, 2))]
    return [decoy.edit, *between, _undoing(decoy)]


def _placed(decoy: DecoyEdit, commits: list[Edit]) -> Decoy:
    return Decoy(
        kind=decoy.kind,
        name=decoy.edit.name,
        first=commits.index(decoy.edit),
        undone=commits.index(_undoing(decoy)),
    )


@cache
def _template_texts() -> tuple[tuple[str, str], ...]:
    files = sorted(path for path in _TEMPLATES.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return tuple(
        (path.relative_to(_TEMPLATES).as_posix(), path.read_text(encoding="utf-8")) for path in files
    )


def templates() -> dict[str, str]:
    """Path to text of the repository as it is before any edit."""
    return dict(_template_texts())
