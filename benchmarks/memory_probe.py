"""Estimates against the probe, over a grid of runs of real Megatron Bridge training on a CPU.

usage: memory_probe.py --recorded FILE [--json]
       memory_probe.py --python PYTHON --folder FOLDER [--only WORD] [--json]
                       [--record FILE] [--storages FILE]

The first compares what FILE recorded with the estimates of today, which takes seconds. The second runs the
grid (half a minute a run; PYTHON is an interpreter with Megatron Bridge, as `scripts/with_megatron.sh` makes
one), with --only those cases that have WORD in their names; finished runs in FOLDER are not made again. It
ends with 1 if a total is off by more than 2 %, a component above 64 MiB by more than 5 %, or a parameter
is miscounted.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.probe_grid import GRID, Case
from benchmarks.probe_records import Comparison, Json, cases_of, compare, recorded
from benchmarks.probe_runs import Run, RunFailed, prepare, read, train
from benchmarks.probe_storages import listed
from memory_models.breakdown import MIB

MEASURED_ON = (
    "Megatron Bridge 0.3.1 on megatron-core 0.16.1, torch {torch}, a CPU ({machine}) under the probe"
)


def run_grid(python: Path, folder: Path, cases: Sequence[Case]) -> list[Run]:
    """Train every case once; a failed one is told and left out."""
    prepare(folder)
    runs = []
    for number, case in enumerate(cases, 1):
        output = folder / "runs" / case.name.replace(" ", "-").replace("'", "")
        print(f"{number}/{len(cases)} {case.name}", file=sys.stderr, flush=True)
        try:
            runs.append(finished(case, output) or train(python, folder, case, output))
        except RunFailed as failure:
            print(failure, file=sys.stderr)
    return runs


def finished(case: Case, output: Path) -> Run | None:
    """A run that was made before; what a failed or interrupted one left is swept away."""
    try:
        run = read(case, output)
    except FileNotFoundError:
        run = None
    if run is None or any(record["status"] != "completed" for record in run.records):
        shutil.rmtree(output, ignore_errors=True)
        return None
    return run


def table(rows: Sequence[Comparison]) -> str:
    lines = [
        f"{'case':52} {'rank':>4} {'measured':>10} {'estimate':>10} {'error':>8}  components above 64 MiB"
    ]
    for row in rows:
        parts = ", ".join(f"{part.value} {error:+.1%}" for part, error in row.component_errors.items())
        mark = "" if row.within else "  OUTSIDE" if row.parameters_exact else "  PARAMETERS"
        lines.append(
            f"{row.case:52} {row.rank:>4} {row.measured.total_bytes / MIB:>10.1f} "
            f"{row.estimated.total_bytes / MIB:>10.1f} {row.total_error:>+8.2%}  {parts}{mark}"
        )
    return "\n".join(lines)


def summary(rows: Sequence[Comparison]) -> Json:
    components = [abs(error) for row in rows for error in row.component_errors.values()]
    return {
        "cases": len({row.case for row in rows}),
        "ranks": len(rows),
        "within": sum(row.within for row in rows),
        "largest_total_error": max(abs(row.total_error) for row in rows),
        "components": len(components),
        "largest_component_error": max(components, default=0.0),
        "parameters_exact": sum(row.parameters_exact for row in rows),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--storages", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.recorded is not None:
        record = json.loads(options.recorded.read_text())
    elif options.python is not None and options.folder is not None:
        runs = run_grid(options.python, options.folder, [case for case in GRID if options.only in case.name])
        if not runs:
            parser.error("no case ran")
        where = MEASURED_ON.format(torch=runs[0].records[0]["torch"], machine=platform.machine())
        record = recorded(runs, where)
        if options.record is not None:
            write_compact(options.record, record)
        if options.storages is not None:
            write_compact(options.storages, listed(runs, where))
    else:
        parser.error("give --recorded, or --python and --folder")
    rows = [row for case in cases_of(record) for row in compare(case)]
    if options.json:
        print(json.dumps({"rows": [row.to_json() for row in rows], "summary": summary(rows)}))
    else:
        print(table(rows))
        print(json.dumps(summary(rows)))
    return 0 if all(row.within for row in rows) else 1


def write_compact(path: Path, record: Json) -> None:
    """One line for each case, so that a change of one shows as one."""
    rest = {key: value for key, value in record.items() if key != "cases"}
    head = json.dumps(rest, separators=(",", ":"))[:-1]
    body = ",\n".join(json.dumps(case, separators=(",", ":")) for case in record["cases"])
    path.write_text(f'{head}, "cases": [\n{body}\n]}}\n')


if __name__ == "__main__":
    sys.exit(main())
