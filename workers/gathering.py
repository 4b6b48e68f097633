"""From what a trial left behind to one measurement: all ranks merged, and what happened (`outcomes`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bisection.commits import State
from bisection.measurement import Measurement, Outcome, OutOfMemory, Peak, RankShare, Retained, Step
from memory_models.breakdown import MemoryBreakdown, TimeBreakdown
from workers.outcomes import Decision, Remains, decide, stopped
from workers.rank_files import PeakCell, RankFile, RankFileError, RankPeak, RankStep, read_rank_files

#: A measurement is a row of the database; of the ranks of a large job, the first so many are kept one by one.
MOST_RANKS = 512
#: Ranks of one job mostly miss the same.
MOST_UNSEEN = 20


def gather(remains: Remains, state: State) -> Measurement:
    """The measurement of a trial, without what only its runner knows (worker, keys, digests)."""
    try:
        ranks = read_rank_files(remains.probe_folder, remains.processes, remains.world_size)
    except RankFileError as error:
        decision = stopped(remains.result) or Decision(
            outcome=Outcome.INVALID, reason=f"no measurement to trust: {error}"
        )
        return Measurement(outcome=decision.outcome, reason=decision.reason, state=state)
    decision = decide(remains, ranks)
    merged = _merge(ranks, decision.outcome)
    notes = list(merged.notes)
    if remains.result.left_behind_killed:
        notes.append(f"{remains.result.left_behind_killed} processes outlived the command and were killed")
    if remains.result.survivors:
        notes.append(f"{remains.result.survivors} processes could not be killed")
    notes += remains.result.notes
    return merged.evolve(
        outcome=decision.outcome,
        reason=decision.reason,
        signature=decision.signature,
        doubtful=decision.doubtful,
        gpu_bytes_of_others=remains.result.gpu_bytes_of_others,
        state=state,
        notes=tuple(dict.fromkeys(notes)),
    )


def _merge(ranks: Mapping[int, RankFile], outcome: Outcome) -> Measurement:
    """One measurement of all ranks: bytes of the worst one, tokens and images of all together."""
    blank = Measurement(outcome=outcome, state=State(commit="0" * 40))
    if not ranks:
        return blank
    files = [ranks[rank] for rank in sorted(ranks)]
    worst = max(files, key=lambda file: file.peak.allocated_bytes if file.peak else -1)
    refused = [file.oom for file in files if file.oom is not None]
    first = files[0]
    notes = list(dict.fromkeys(note for file in files for note in file.notes))
    notes += _disagreements(files)
    return blank.evolve(
        hardware=first.hardware,
        device=first.device,
        peak=_peak(worst.peak) if worst.peak else None,
        summits=tuple(_peak(summit) for summit in worst.summits),
        retained=tuple(
            Retained(step=row.step, breakdown=_breakdown(row.breakdown)) for row in worst.retained
        ),
        steps=_steps(files, worst),
        time=TimeBreakdown.from_json([row.model_dump() for row in worst.time]),
        oom=OutOfMemory(**refused[0].model_dump()) if refused and outcome is Outcome.OUT_OF_MEMORY else None,
        real_data=None
        if any(file.data.real is None for file in files)
        else all(file.data.real for file in files),
        images=sum(file.data.images for file in files),
        trainable=_largest(file.trainable for file in files),
        imports=dict(first.imports),
        patches=_sums(file.patches for file in files),
        ranks=tuple(_share(file) for file in files[:MOST_RANKS]),
        number=first.command.number if first.command else None,
        unseen=tuple(dict.fromkeys(told for file in files for told in file.unseen))[:MOST_UNSEEN],
        notes=tuple(notes),
    )


def _share(file: RankFile) -> RankShare:
    steady = file.steps[1:]
    return RankShare(
        rank=file.rank,
        peak_bytes=file.peak.allocated_bytes if file.peak else 0,
        reserved_bytes=file.peak.reserved_bytes if file.peak else 0,
        seconds=sum(step.seconds for step in steady) / len(steady) if steady else 0.0,
        loss_tokens=sum(step.loss_tokens for step in file.steps),
        image_tokens=sum(step.image_tokens for step in file.steps),
        expert_tokens=sum(step.expert_tokens for step in file.steps),
        outside_bytes=file.watch.outside_bytes if file.watch else None,
    )


def _peak(peak: RankPeak) -> Peak:
    return Peak(
        rank=peak.rank,
        step=peak.step,
        phase=peak.phase,
        instant=peak.instant,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        breakdown=_breakdown(peak.breakdown),
    )


def _breakdown(cells: Iterable[PeakCell]) -> MemoryBreakdown:
    return MemoryBreakdown.from_json([cell.model_dump() for cell in cells])


def _steps(files: Sequence[RankFile], worst: RankFile) -> tuple[Step, ...]:
    """The steps that every rank took; the slowest rank's seconds, since a step waits for it."""
    count = min(len(file.steps) for file in files)
    return tuple(
        Step(
            step=worst.steps[at].step,
            peak_bytes=worst.steps[at].peak_bytes,
            retained_bytes=worst.steps[at].retained_bytes,
            seconds=max(file.steps[at].seconds for file in files),
            loss_tokens=sum(file.steps[at].loss_tokens for file in files),
            image_tokens=sum(file.steps[at].image_tokens for file in files),
            padding_tokens=sum(file.steps[at].padding_tokens for file in files),
            patches=sum(file.steps[at].patches for file in files),
            tokens=sum(file.steps[at].tokens for file in files),
            sequences=sum(file.steps[at].sequences for file in files),
            preparations=max(file.steps[at].preparations for file in files),
            rank_load=_rank_load([file.steps[at] for file in files]),
            expert_load=_expert_load([file.steps[at] for file in files]),
        )
        for at in range(count)
    )


def _rank_load(ranks: Sequence[RankStep]) -> float:
    """The most tokens that one rank's experts got, over the mean of the ranks that hold experts."""
    held = [rank.expert_tokens for rank in ranks if rank.expert_calls]
    return max(held) * len(held) / sum(held) if sum(held) else 0.0


def _expert_load(ranks: Sequence[RankStep]) -> float:
    """The most tokens that one expert got in one layer, over the mean of experts and layers."""
    tokens, calls = sum(rank.expert_tokens for rank in ranks), sum(rank.expert_calls for rank in ranks)
    return max(rank.most_expert_tokens for rank in ranks) * calls / tokens if tokens else 0.0


def _disagreements(files: Sequence[RankFile]) -> list[str]:
    notes = []
    if len({len(file.steps) for file in files}) > 1:
        notes.append("the ranks took different numbers of steps: only those of all are kept")
    if any(file.imports.get("megatron.core") != files[0].imports.get("megatron.core") for file in files):
        notes.append("the ranks imported megatron.core from different places")
    return notes


def _largest(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """By key the largest: a part that one pipeline rank lacks another has."""
    result: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            result[key] = max(result.get(key, 0), value)
    return result


def _sums(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    result: dict[str, int] = {}
    for row in rows:
        for key, value in row.items():
            result[key] = result.get(key, 0) + value
    return result
