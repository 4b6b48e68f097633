"""What a trial may tell of what it trained on: the profile's rule of privacy, carried out.

By default no sample leaves the worker: neither its text, nor its picture, nor its path. What a job
printed is told line by line and message by message, from lists of what may leave; the whole log stays
on this host for some days. Where the profile says that samples may leave, all is told as it is.
Credentials never leave: `credentials` sees to that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workers.rank_files import RankFileError, parse_strictly, read_plain_file
from workers.redacted_lines import Line, LineClass
from workers.redacted_messages import NO_SUCH_KEY, told_message
from workers.redacted_paths import RedactedPaths
from workers.signatures import Failure

_LONGEST_LINE = 2000
_SOURCE_LIMIT_BYTES = 2**20
_MOST_SOURCES = 8
_LONGEST_SETTING = 300
_LONGEST_TEXT = 4000
#: Keys of a configuration whose texts may be written for, or by, samples.
_PROSE = re.compile(r"data|prompt|template|caption|message|text|question|answer|example", re.IGNORECASE)
_FILE = re.compile(r'^ *+(?:\| )?(?:\[rank\d+\]:? ?)? *+File "([^"\n]+)", line \d+', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """The rule for one trial: ``paths`` is None where samples may leave."""

    paths: RedactedPaths | None
    own_folders: Sequence[Path] = ()  #: where the state's own code lies
    asked: frozenset[str] = frozenset()  #: configuration keys of the request, whole and their last parts

    def named(self, row: Any) -> Any:
        """JSON of the operator's own words, with the profile's words for its folders."""
        return _each_text(row, self.paths.named) if self.paths else row

    def text(self, text: str) -> str:
        """A text of firstbad's own, which may name paths."""
        return self.paths.in_text(text) if self.paths else text

    def failure(self, failure: Failure) -> Failure:
        """The failure with a message that may be shown; its kind is to be told from the whole one."""
        if self.paths is None:
            return failure
        files = [frame.rpartition(":")[0] for frame in failure.frames]
        message = told_message(failure.message, self._sources(files), self.paths, self.asked)
        return replace(failure, message=message, text="")

    def log(self, log: str) -> str:
        """The log line by line; of lines that stay here, how many there were."""
        if self.paths is None:
            return log
        sources = self._sources(_FILE.findall(log))
        told: list[str] = []
        withheld, before = 0, ""
        for text in log.split("\n"):
            line = self._line(text, before, sources)
            before = text
            if line is None:
                withheld += 1
                continue
            if withheld:
                told.append(_lines_stay(withheld))
                withheld = 0
            told.append(line)
        if withheld:
            told.append(_lines_stay(withheld))
        return "\n".join(told)

    def _line(self, text: str, before: str, sources: Sequence[str]) -> str | None:
        """What may be shown of one line; None where it is to stay."""
        paths = self.paths
        assert paths is not None
        if len(text) > _LONGEST_LINE:
            return None
        line = Line(text, before)
        if line.kind is LineClass.WITHHELD:
            return None
        if line.kind is LineClass.ERROR:
            message = told_message(line.message, sources, paths, self.asked)
            return f"{line.prefix}{line.type}" + (f": {message}" if message else "")
        return paths.in_text(text) if line.kind is LineClass.FRAME else text

    def last_words(self, line: str) -> str:
        """The last line of a log, for a sentence."""
        told = self.log(line)
        if self.paths is None or told != _lines_stay(1):
            return told
        refused = NO_SUCH_KEY.search(line)
        key = next((key for key in sorted(self.asked, key=len, reverse=True) if key in line), "")
        if refused and key:  # a script's own sentence, without a traceback: argparse ends so
            return f"... {refused[0]} ... {key}"
        return "a line that stays on the worker"

    def configuration(self, content: bytes) -> Any:
        """A resolved configuration: names and numbers as they are, paths by pseudonym, prose withheld."""
        row = parse_strictly(content)
        return self._setting(row, prose=False) if self.paths else row

    def rank_file(self, content: bytes) -> Any:
        """A rank's file: what its failure said is told like a log, all else is the probe's own."""
        row = parse_strictly(content)
        if self.paths is None:
            return row
        error = row.get("error") if isinstance(row, dict) else None
        if isinstance(error, dict):
            frames = tuple(str(frame) for frame in error.get("frames") or ())
            message = str(error.get("message") or "")
            spoken = Failure(type=str(error.get("type")), message=message, frames=frames)
            told = {"message": self.failure(spoken).message, "text": self.log(str(error.get("text") or ""))}
            row = {**row, "error": {**error, **told}}
        return _each_text(row, lambda text: self.text(text[:_LONGEST_TEXT]))

    def _setting(self, value: Any, *, prose: bool) -> Any:
        """``prose``: here a text with spaces may be a prompt or a sample."""
        assert self.paths is not None
        if isinstance(value, str):
            if value.startswith(("/", "~/")):
                return self.paths.told(value)
            if len(value) > _LONGEST_SETTING or (prose and re.search(r"\s", value.strip())):
                return f"<text of {len(value)} characters, withheld>"
            return self.paths.in_text(value)
        if isinstance(value, list):
            return [self._setting(item, prose=prose) for item in value]
        if isinstance(value, dict):
            return {
                self.text(str(key)[:_LONGEST_TEXT]): self._setting(
                    item, prose=prose or bool(_PROSE.search(str(key)))
                )
                for key, item in value.items()
            }
        return value

    def _sources(self, files: Iterable[str]) -> list[str]:
        """The state's own files among those that a traceback names, innermost first."""
        texts: dict[str, str] = {}
        for file in reversed(list(files)):
            if len(texts) == _MOST_SOURCES:
                break
            for folder in self.own_folders:
                path = Path(file) if file.startswith("/") else folder / file
                if ".." in path.parts or not path.is_relative_to(folder) or str(path) in texts:
                    continue
                try:
                    content = read_plain_file(path, _SOURCE_LIMIT_BYTES)
                except RankFileError:
                    continue
                if content is not None:
                    texts[str(path)] = content.decode(errors="replace")
        return list(texts.values())


def _lines_stay(count: int) -> str:
    return f"<{count} {'line stays' if count == 1 else 'lines stay'} on the worker>"


def _each_text(value: Any, told: Callable[[str], str]) -> Any:
    """JSON with every text in it told, keys as well: a mapping may be keyed by files."""
    if isinstance(value, str):
        return told(value)
    if isinstance(value, list):
        return [_each_text(item, told) for item in value]
    if isinstance(value, dict):
        return {told(str(key)): _each_text(item, told) for key, item in value.items()}
    return value
