"""What a commit contains: which launch adapter fits it, and how it spells a configuration key.

Both are read from the files of the workspace, never from dates or version numbers: branches carry
old code for a long time. Files are the commit's, so they are read as plain files up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bisection.adapters.launch_adapters import LaunchAdapter, Renamed, When
from bisection.adapters.profiles import Profile
from workers.rank_files import RankFileError, read_plain_file

#: The longest file that was ever asked for, Megatron Core's transformer configuration, has 170 kB.
_FILE_LIMIT_BYTES = 2**21
#: Hydra's marks for a key that is added, or removed.
_MARKS = "+~"


class OverrideRefused(ValueError):
    """A change of the configuration that must not reach a command line; the requester's to mend."""


class NoAdapter(ValueError):
    """No launch adapter of the profile fits the commit, or the one that does says why it cannot run."""


@dataclass(frozen=True, kw_only=True)
class SpeltOverride:
    """A change of the configuration, as it was asked for and as the commit knows it."""

    written: str
    spelt: str
    value: Any


def choose_adapter(profile: Profile, workspace: Path) -> LaunchAdapter:
    """The first adapter that fits what the commit contains. Raises NoAdapter."""
    for adapter in profile.launch:
        if _fits(adapter.when, workspace):
            if adapter.refused:
                raise NoAdapter(f"profile {profile.name} cannot run at this commit: {adapter.refused}")
            return adapter
    raise NoAdapter(
        f"no launch adapter of profile {profile.name} fits this commit: "
        + "; ".join(" and ".join(_asked(adapter.when)) for adapter in profile.launch)
    )


def spell(profile: Profile, workspace: Path, overrides: Mapping[str, Any]) -> tuple[SpeltOverride, ...]:
    """Each override under the name that the commit knows; a name that it knows stays as it is.

    Raises OverrideRefused where the commit knows none of a setting's names, or two overrides are one.
    """
    spelt: dict[str, SpeltOverride] = {}
    for written, value in overrides.items():
        key = written.lstrip(_MARKS)
        marks = written[: len(written) - len(key)]
        name = key
        for setting in profile.renamed:
            if key in setting.names:
                name = _known_name(setting, key, workspace)
        if name in spelt:
            raise OverrideRefused(
                f"{spelt[name].written} and {written} are one setting at this commit, {name}: give one"
            )
        spelt[name] = SpeltOverride(written=written, spelt=marks + name, value=value)
    return tuple(spelt.values())


def _known_name(setting: Renamed, key: str, workspace: Path) -> str:
    texts = [text for text in (_text(workspace, file) for file in setting.files) if text is not None]
    if not texts:
        return key  # the tree does not hold what could tell, a library from a wheel for instance
    known = [name for name, shown in setting.names.items() if shown and any(shown in text for text in texts)]
    known = known or [name for name, shown in setting.names.items() if not shown]
    if not known:
        names = ", ".join(setting.names)
        raise OverrideRefused(
            f"this commit does not know {key}"
            + (f" under any of its names ({names})" if len(setting.names) > 1 else "")
            + (f": {setting.note}" if setting.note else "")
        )
    return key if key in known else known[0]


def _fits(when: When, workspace: Path) -> bool:
    return (
        all((workspace / path).exists() for path in when.path_exists)
        and not any((workspace / path).exists() for path in when.path_absent)
        and all(passage in (_text(workspace, file) or "") for file, passage in when.file_contains.items())
        and not any(passage in (_text(workspace, file) or "") for file, passage in when.file_lacks.items())
    )


def _asked(when: When) -> Iterable[str]:
    yield from (f"{path} must exist" for path in when.path_exists)
    yield from (f"{path} must not exist" for path in when.path_absent)
    yield from (f"{file} must contain {passage!r}" for file, passage in when.file_contains.items())
    yield from (f"{file} must not contain {passage!r}" for file, passage in when.file_lacks.items())


def _text(workspace: Path, file: str) -> str | None:
    """A file's text; None where there is no such plain file. A link, or a file too large, counts as none."""
    try:
        content = read_plain_file(workspace / file, _FILE_LIMIT_BYTES)
    except RankFileError:
        return None
    return None if content is None else content.decode(errors="replace")
