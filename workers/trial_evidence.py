"""The files that a report needs of a trial: bounded, without this host's folders, as the profile allows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bisection.adapters.catalogue import Profile
from workers.launching import PROBE_FOLDER, Launch
from workers.rank_files import RankFileError, read_plain_file
from workers.redacted_paths import RedactedPaths
from workers.redaction import Redaction
from workers.withheld_logs import KEEP_SECONDS, WithheldLogs

#: An artifact goes into the database; a config is 100 kB, a rank's file a few hundred.
ARTIFACT_LIMIT_BYTES = 2**20


def redaction_of(
    profile: Profile,
    launch: Launch,
    *,
    trial_folder: Path,
    root: Path,
    own_folders: Sequence[Path],
    key: bytes,
) -> Redaction:
    """What this trial may tell. Folders that the profile names are told by its own words."""
    if profile.privacy.samples == "leave":
        return Redaction(paths=None)
    named = {"{data}": profile.data.path or ""}
    named |= {f"{{{name}}}": place for name, place in profile.places.items()}
    adapters = [adapter.env for adapter in profile.launch if adapter.name == launch.adapter]
    named |= {f"${name}": value for env in adapters for name, value in env.items()}
    roots = {os.path.normpath(place): word for word, place in named.items() if place.startswith("/")}
    paths = RedactedPaths(
        key=key,
        roots={str(trial_folder): "<trial>"} | roots,
        code=(
            *(str(launch.folder), str(PROBE_FOLDER), str(root / "environments"), str(root / "overlays")),
            *("/usr", "/bin", "/lib", "/dev", "/proc", "/sys"),
        ),
    )
    keys = [key for change in launch.overrides for key in (change.written, change.spelt)]
    asked = frozenset(word for key in keys for word in (key, key.rpartition(".")[2]))
    return Redaction(paths=paths, own_folders=own_folders, asked=asked)


def trial_evidence(
    launch: Launch,
    *,
    name: str,
    log: str,
    probe_folder: Path,
    worst_rank: int,
    redaction: Redaction,
    withheld: WithheldLogs,
    scrub: Callable[[str], str],
) -> dict[str, bytes]:
    """By name. ``scrub`` takes the trial's own folders out of a text.

    A log of which something stays on this host is kept whole in ``withheld``, under the trial's ``name``.
    """
    told = redaction.log(log)
    if told != log:
        kept = withheld.keep(name, log)
        told += (
            f"\n<the whole log stays on this worker's host for {KEEP_SECONDS / 86400:g} days, in its folder "
            f"{kept.parent.name}: {kept.name}>\n"
        )
    artifacts = {
        "log.txt": scrub(told).encode()[-ARTIFACT_LIMIT_BYTES:],
        "launch.json": _written(redaction.named(_reproduction(launch)), scrub),
    }
    for file in ("config.json", *(f"rank-{rank}.json" for rank in sorted({0, worst_rank}))):
        with suppress(RankFileError, ValueError):
            content = read_plain_file(probe_folder / file, ARTIFACT_LIMIT_BYTES)
            if content is not None:
                tell = redaction.configuration if file == "config.json" else redaction.rank_file
                artifacts[file] = _written(tell(content), scrub)
    with suppress(RankFileError, ValueError):
        content = read_plain_file(probe_folder / f"allocations-{worst_rank}.json", ARTIFACT_LIMIT_BYTES)
        if content is not None:
            artifacts["allocations.json"] = _written(redaction.rank_file(content), scrub)
    return {file: content for file, content in artifacts.items() if len(content) <= ARTIFACT_LIMIT_BYTES}


def _reproduction(launch: Launch) -> Mapping[str, Any]:
    environment = {name: value for name, value in launch.environment.items() if name != "PYTHONPATH"}
    return {
        "command": list(launch.command),
        "environment": environment,
        "python_path": launch.environment["PYTHONPATH"].split(os.pathsep),
        "folder": str(launch.folder),
        "adapter": launch.adapter,
        "overrides": [asdict(change) for change in launch.overrides],
    }


def _written(row: Any, scrub: Callable[[str], str]) -> bytes:
    return scrub(json.dumps(row, sort_keys=True, indent=1)).encode()
