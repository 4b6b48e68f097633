"""What a profile must say for its trials to be honest: read from its commands, without running any.

A rule that is broken makes trials lie or measure something else. The rules about checkpoints and the batch
are asked of Megatron Bridge's own runners, whose recipes save and resume unless told otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bisection.adapters.profiles import Profile
from bisection.criteria import CriterionKind
from workers.step_needs import needs_of_words

_WORD = re.compile(r"\{([a-z][a-z0-9_]*)\}")
#: Upstream's scripts that run a recipe by its name, at whatever era.
_RUNNERS = ("scripts/training/run_recipe.py", "finetune_qwen_vl.py")

#: What decides of a CUDA run's memory besides its code: the allocator's mode, and NCCL's buffers.
_OF_CUDA = ("PYTORCH_CUDA_ALLOC_CONF", "NCCL_GRAPH_REGISTER", "NCCL_NVLS_ENABLE")


def broken_rules(profile: Profile) -> Iterator[str]:
    """Each broken rule as a sentence that names the era and the repair."""
    yield from _of_the_criterion(profile)
    container, slurm = profile.container, profile.slurm
    if container and slurm and slurm.nodes > 1 and not container.network:
        yield "container: ranks of several nodes meet over the network: write network: true"
    known = {"python", "environment", "workspace", "trial", "steps", "data", *profile.places}
    for adapter in profile.launch:
        if not adapter.command:
            continue
        era = f"launch {adapter.name!r}: " if adapter.name else "launch: "
        words = " ".join(adapter.command)
        if "firstbad_probe" not in adapter.command:
            yield f"{era}the command does not start the probe: write {{python}} -m firstbad_probe SCRIPT"
        if "{steps}" not in words:
            yield f"{era}the command does not pass {{steps}} on: the job would train to its own end"
        for word in sorted(
            {w for text in (*adapter.command, *adapter.env.values()) for w in _WORD.findall(text)}
        ):
            if word not in known:
                yield f"{era}{{{word}}} is neither a word of firstbad's nor one of the profile's places"
        needs = needs_of_words(adapter.command)
        if profile.steps < needs.least:
            yield f"{era}{profile.steps} steps are too few: {needs.why}; set `steps` to {needs.least} or more"
        if adapter.env.get("HF_HUB_OFFLINE", "1") != "1":
            yield f"{era}HF_HUB_OFFLINE must stay 1: the hub may hold something else at every trial"
        if profile.isolation and re.search(r"\{trial\}(?!/(tmp|home|probe)\b)", words):
            yield f"{era}in isolation {{trial}} itself cannot be written: write {{trial}}/tmp"
        if any(word.endswith(_RUNNERS) for word in adapter.command):
            yield from (era + broken for broken in _of_a_runner(adapter.command))
            yield from (era + broken for broken in _of_its_environment(profile, adapter.env))


def _of_the_criterion(profile: Profile) -> Iterator[str]:
    criterion = profile.default_criterion()
    if criterion is None or profile.data.kind != "mock":
        return
    if profile.refuses(criterion):
        yield f"criterion: {profile.refuses(criterion)}; name real data"
    elif criterion.kind is not CriterionKind.CRASH:
        yield (
            f"criterion: where the model reads images, {criterion.kind} is not judged on mock data, "
            "and every trial would be skipped; name real data"
        )


def _of_a_runner(command: tuple[str, ...]) -> Iterator[str]:
    keys = dict(word.split("=", 1) for word in command if "=" in word)
    load = keys.get("checkpoint.load", "")
    if load != "null" and not load.startswith("{trial}"):
        yield "a checkpoint that lies about could be resumed: write checkpoint.load=null"
    save = keys.get("checkpoint.save", "")
    if save != "null" and not save.startswith("{trial}"):
        yield "checkpoints would be saved outside of the trial: write checkpoint.save=null"
    if "train.global_batch_size" not in keys:
        yield "runners scale the batch with the world: pin it by train.global_batch_size=N"


def _of_its_environment(profile: Profile, env: Mapping[str, str]) -> Iterator[str]:
    """Before 2026-07 these came from whoever launched: unpinned, they differ from host to host."""
    if "HF_HOME" not in env:
        yield "models and processors would be looked for in the trial's own empty home: pin HF_HOME in env"
    unpinned = [name for name in _OF_CUDA if name not in env] if profile.device == "cuda" else []
    if unpinned:
        yield f"memory and speed would follow the host's {', '.join(unpinned)}: pin them in env"
