"""The two recorded histories, and the ranges that lie in them: windows, and the inside of each bump.

A record is one first-parent commit a line, oldest first: sha, paths and, for Megatron Bridge, the gitlink of
its submodule and the blobs of its lock. Not covered: merges, authors, contents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bisection.commits import Commit

#: What can change a vision-language training run of Megatron Bridge.
RELEVANT = ("src/", "scripts/training/", "examples/", "3rdparty/", "pyproject.toml", "uv.lock")
SUBMODULE = "3rdparty/Megatron-LM"

#: Bumps with an end off the recorded line of Megatron-LM (development and release branches), by the commit
#: of Megatron Bridge: first-parent commits from the merge base to the old pin and to the new one. Counted by
#: `git rev-list --count --first-parent PIN --not $(git merge-base OLD NEW)` in NVIDIA/Megatron-LM at
#: d98e8a64dd. With the record's 103 others and the first pin, which has nothing before it, they make 120.
OFF_THE_LINE = {
    "063498590a29": (0, 11), "c1e05b1229a5": (0, 3), "80506fabc91e": (0, 2), "e7d65fe6184f": (0, 48),
    "c44016461c94": (0, 35), "2876a9466366": (0, 1), "f1018597d7e1": (0, 1), "3961158b7d20": (0, 44),
    "8d929aa7507d": (0, 27), "6ee5eb46e873": (0, 19), "7aa49bc2e920": (0, 21), "f04c5acf0196": (224, 173),
    "47c5d09b817d": (192, 315), "ca94b04a3a87": (315, 192), "04a684d5138a": (0, 2), "742307151691": (2, 6),
}  # fmt: skip


def read_history(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text().splitlines()]


def commits_of(rows: Sequence[Mapping[str, Any]], relevant: Sequence[str]) -> list[Commit]:
    """Commits with the keys that a profile's relevant paths give them; no relevant path: every one counts."""
    commits: list[Commit] = []
    tree = 0
    for row in rows:
        if not relevant or any(path.startswith(tuple(relevant)) for path in row["paths"]):
            tree += 1
        blobs = json.dumps(row.get("blobs") or {}, sort_keys=True)
        commits.append(
            Commit(
                hash=row["sha"],
                parents=(commits[-1].hash,) if commits else (),
                paths=tuple(row["paths"]),
                pins={SUBMODULE: row["gitlink"]} if row.get("gitlink") else {},
                tree_key=f"{tree}",
                environment_key=hashlib.sha256(blobs.encode()).hexdigest()[:12],
            )
        )
    return commits


@dataclass(frozen=True, kw_only=True)
class Bump:
    """The inside of one move of the submodule: from the old pin back to the merge base, then on to the new.

    ``rows[0]`` is the old pin, ``rows[base]`` the merge base (the old pin itself, unless the bump diverged),
    ``rows[-1]`` the new pin.
    """

    commit: str  #: of Megatron Bridge
    rows: tuple[Mapping[str, Any], ...]
    base: int
    recorded: bool  #: both ends lie on the recorded line; else the length is real and the paths are borrowed

    @property
    def diverged(self) -> bool:
        return self.base > 0

    def middle_on(self) -> int:
        """A row half way from the merge base to the new pin."""
        return (self.base + len(self.rows)) // 2

    def middle_back(self) -> int:
        """A row half way from the old pin back to the merge base; the first behind the old pin at least."""
        return (1 + self.base) // 2


def bumps_of(bridge: Sequence[Mapping[str, Any]], core: Sequence[Mapping[str, Any]]) -> list[Bump]:
    """Every bump but the first pin. Raises KeyError for one off the line whose shape is not known."""
    place = {row["sha"]: index for index, row in enumerate(core)}
    bumps = []
    for before, after in pairwise(bridge):
        old, new = before["gitlink"], after["gitlink"]
        if not old or old == new:
            continue
        if old in place and new in place and place[old] < place[new]:
            bumps.append(
                Bump(
                    commit=after["sha"], rows=tuple(core[place[old] : place[new] + 1]), base=0, recorded=True
                )
            )
        else:
            back, on = OFF_THE_LINE[after["sha"][:12]]
            bumps.append(
                Bump(
                    commit=after["sha"], rows=_borrowed(core, old, back + on, new), base=back, recorded=False
                )
            )
    return bumps


def _borrowed(
    core: Sequence[Mapping[str, Any]], old: str, steps: int, new: str
) -> tuple[Mapping[str, Any], ...]:
    """As many commits as there are, with the paths of the record's oldest ones."""
    rows = [
        {"sha": hashlib.sha1(f"{old}{new}{n}".encode()).hexdigest(), "paths": core[n]["paths"]}
        for n in range(steps + 1)
    ]
    return ({**rows[0], "sha": old}, *rows[1:-1], {**rows[-1], "sha": new})
