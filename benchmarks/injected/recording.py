"""Measured pairs in a file, so that they can be classified again without training anything.

JSON, compressed: parents are shared, and of a culprit's configuration only what differs is kept. What
says where the machine keeps its files is left out.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.injected.answering import Pair
from benchmarks.injected.injection import Injection
from benchmarks.injected.training import Run
from bisection.measurement import Measurement

_OF_THIS_MACHINE = ("imports", "patches", "notes", "artifacts", "environment_key", "worker", "profile_digest")


def write_pairs(pairs: Iterable[Pair], path: Path) -> None:
    runs: list[dict[str, Any]] = []
    rows = {}
    for pair in pairs:
        parent, culprit = _row(pair.parent), _row(pair.culprit)
        if parent not in runs:
            runs.append(parent)
        culprit["config"] = _changes(pair.parent.config, pair.culprit.config)
        rows[pair.injection.name] = {"parent": runs.index(parent), "culprit": culprit}
    text = json.dumps({"parents": runs, "pairs": rows}, sort_keys=True, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_pairs(path: Path, injections: Sequence[Injection]) -> list[Pair]:
    """The recorded pairs of these injections. Raises KeyError for one that is not recorded."""
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    pairs = []
    for injection in injections:
        row = recorded["pairs"][injection.name]
        parent = _run(recorded["parents"][row["parent"]], {})
        pairs.append(Pair(injection=injection, parent=parent, culprit=_run(row["culprit"], parent.config)))
    return pairs


def _row(run: Run) -> dict[str, Any]:
    measurement = {k: v for k, v in run.measurement.to_json().items() if k not in _OF_THIS_MACHINE}
    return {"measurement": measurement, "config": run.config, "processes": run.processes}


def _run(row: Mapping[str, Any], parent_config: Mapping[str, Any]) -> Run:
    config = row["config"] if not parent_config else _changed(parent_config, row["config"])
    return Run(
        measurement=Measurement.from_json(row["measurement"]), config=config, processes=row["processes"]
    )


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Nested: the keys of ``after`` that differ. Keys that only ``before`` has are null in it."""
    changes: dict[str, Any] = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inside = _changes(old, new)
            if inside:
                changes[key] = inside
        elif old != new:
            changes[key] = new
    return changes


def _changed(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    after = dict(before)
    for key, value in changes.items():
        old = before.get(key)
        nested = isinstance(value, Mapping) and isinstance(old, Mapping)
        after[key] = _changed(old, value) if nested and isinstance(old, Mapping) else value
    return after
