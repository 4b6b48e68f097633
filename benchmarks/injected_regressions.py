"""Regressions injected into real code: does attribution name their component and kind?

    bash scripts/with_megatron.sh .venv/bin build/test-home \
        .venv/bin/python -m benchmarks.injected_regressions [--only NAME] [--set blind|sighted] [--json]
        [--record FILE] [--work FOLDER]
    .venv/bin/python -m benchmarks.injected_regressions --recorded FILE

Each case trains the demo's nightly recipe twice with real Megatron Bridge under the probe, without and
with the edit (a parent is trained once for all that share its configuration); `--record` keeps what was
measured, and `--recorded` classifies that again. A case that does not show (4 MiB of the peak, 15 % of
a step) is told and counts as a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.injected import blind, sighted
from benchmarks.injected.answering import Answer, Pair, answer
from benchmarks.injected.injection import Injection
from benchmarks.injected.recording import read_pairs, write_pairs
from benchmarks.injected.training import Trainer, TrainingFailed, processes_of
from bisection.regression import RegressionKind

SETS = {"blind": blind.INJECTIONS, "sighted": sighted.INJECTIONS}
MEMORY_STEPS = 4
#: Seconds of a CPU are noisy: the mean is over the steps after the first.
SLOW_DOWN_STEPS = 12


def train_pair(trainer: Trainer, injection: Injection) -> Pair:
    """Raises TrainingFailed or ValueError."""
    base, changed = dict(injection.base), {**injection.base, **injection.overrides}
    processes = max(processes_of(base), processes_of(changed))
    steps = SLOW_DOWN_STEPS if injection.kind is RegressionKind.THROUGHPUT else MEMORY_STEPS
    parent = trainer.run((), base, steps, processes)
    culprit = trainer.run(injection.edits, changed, steps, processes)
    return Pair(injection=injection, parent=parent, culprit=culprit)


def _train_all(injections: Sequence[Injection], work: Path) -> list[Pair]:
    home = os.environ.get("FIRSTBAD_TEST_HOME")
    if not home:
        raise SystemExit("FIRSTBAD_TEST_HOME is not set: start this with scripts/with_megatron.sh")
    trainer, pairs = Trainer(Path(home), work), []
    for injection in injections:
        try:
            pair = train_pair(trainer, injection)
        except (TrainingFailed, ValueError, OSError) as error:
            raise SystemExit(f"{injection.name} did not train: {error}") from error
        pairs.append(pair)
        print(answer(pair).table_row(), file=sys.stderr, flush=True)
    return pairs


def summary(answers: Sequence[Answer]) -> dict[str, str]:
    """Right answers of all, by what the answer is about."""
    memory = [a for a in answers if not a.pair.slow]
    slow = [a for a in answers if a.pair.slow]
    parts = {
        "memory_component": [a.place_right and a.pair.shows for a in memory],
        "memory_kind": [a.kind_right and a.pair.shows for a in memory],
        "slow_down_component": [a.place_right and a.pair.shows for a in slow],
    }
    return {name: f"{sum(right)}/{len(right)}" for name, right in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this case alone; may be repeated")
    parser.add_argument("--set", choices=sorted(SETS), help="one half alone")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep the measured pairs")
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="classify these, train nothing")
    parser.add_argument("--work", type=Path, default=Path("build/injected"), help="where runs are kept")
    options = parser.parse_args()
    sets = [options.set] if options.set else sorted(SETS)
    injections = [i for name in sets for i in SETS[name] if not options.only or i.name in options.only]
    if not injections:
        parser.error(f"no case is named {', '.join(options.only)}")
    if options.recorded:
        pairs = read_pairs(options.recorded, injections)
    else:
        pairs = _train_all(injections, options.work)
    answers = [answer(pair) for pair in pairs]
    if options.record:
        write_pairs(pairs, options.record)
    if options.json:
        print(json.dumps({"summary": summary(answers), "cases": [a.to_json() for a in answers]}, indent=1))
    else:
        for given in answers:
            print(given.table_row())
        print(json.dumps(summary(answers)))


if __name__ == "__main__":
    main()
