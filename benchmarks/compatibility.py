"""Writes docs/compatibility.md: which combinations a trial was run with, and which not.

    python -m benchmarks.compatibility            # write it
    python -m benchmarks.compatibility --check    # exit 1 if it is not what would be written

Runs stand in compatibility.json beside this file, entered by whoever ran them. A combination without a result
is untested, and so is every GPU profile that ships without a run of its own name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from firstbad.shipped_profiles import names, shipped

RUNS = Path(__file__).parent / "compatibility.json"
PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"
UNTESTED = "**untested**"
_COLUMNS = ("bridge", "core", "torch", "python", "transformers", "device", "job", "result", "date", "command")
_HEADS = ("Megatron Bridge", "Megatron Core", "torch", "Python", "transformers", "device", "job", "result")

_HEAD = """\
# Compatibility

Written by `python -m benchmarks.compatibility` from `benchmarks/compatibility.json`; do not edit it here.
A row says what a trial was run with, through a profile and under the probe. What was not run is untested: it
may work, and nobody has seen it.

## Combinations
"""
_LAUNCHERS = """
## Launchers and containers

By what a trial's command was started, and around it which container. Rows without a result are untested;
`firstbad doctor` says so of a host that is to use one.
"""
_SHIPPED = """
## Shipped profiles

What `firstbad profiles list` shows. *Eras* are stretches of upstream's history, each with a command of its
own; *refused* are those whose commits cannot run the job, with the reason in the profile. Which era fits
which commit is tested against facts of real commits; that a command then trains is not.
"""


def page(runs: Sequence[dict[str, Any]], launchers: Sequence[dict[str, Any]] = ()) -> str:
    """The whole document. Raises ValueError for a run without what makes it believable."""
    parts = [_HEAD, *_combinations(runs), _LAUNCHERS, *_launched(launchers), _SHIPPED, *_profiles(runs)]
    return "\n".join(parts) + "\n"


def _launched(launchers: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield _row(["launcher", "container", "what", "result", "date", "by"])
    yield _row(["---"] * 6)
    for row in launchers:
        if row["result"] and not (row.get("date") and row.get("command")):
            raise ValueError(
                f"{row['launcher']} with {row['container']} has a result, but no date or command"
            )
        result = row["result"] or UNTESTED
        yield _row(
            [
                row["launcher"],
                row["container"],
                row["what"],
                result,
                row.get("date", ""),
                row.get("command", ""),
            ]
        )


def _combinations(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield _row([*_HEADS, "date", "by"])
    yield _row(["---"] * (len(_HEADS) + 2))
    for run in runs:
        _believable(run)
        cells = {**run, "result": run["result"] or UNTESTED}
        yield _row([str(cells.get(column) or "") for column in _COLUMNS])


def _profiles(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield _row(["profile", "GPUs", "eras", "refused", "first", "result"])
    yield _row(["---"] * 6)
    ran = {run.get("profile"): run["result"] for run in runs if run["result"]}
    for name in names():
        profile = shipped(name)
        launched = list(dict.fromkeys(adapter.name for adapter in profile.launch if adapter.command))
        refused = {adapter.name for adapter in profile.launch if adapter.refused}
        cells = [len(launched), len(refused), launched[0], ran.get(name, UNTESTED)]
        yield _row([f"`{name}`", str(profile.gpus), *map(str, cells)])


def _believable(run: dict[str, Any]) -> None:
    missing = [name for name in ("job", "date", "command", "transformers") if not run.get(name)]
    if run["result"] and missing:
        raise ValueError(
            f"the run of Megatron Bridge {run['bridge']} has a result, but no {', '.join(missing)}"
        )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    entered = json.loads(RUNS.read_text(encoding="utf-8"))
    wanted = page(entered["runs"], entered["launchers"])
    if not parser.parse_args().check:
        PAGE.write_text(wanted, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit(f"{PAGE} is not up to date: run python -m benchmarks.compatibility")


if __name__ == "__main__":
    main()
