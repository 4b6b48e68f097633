"""Paths in texts: those of code stay, all others are told by a pseudonym.

A folder that the profile names is told by the profile's own word (``{data}``, ``$HF_HOME``), and what
lies in it by a pseudonym below that word. A pseudonym is a keyed digest: equal for equal paths on
every host of an installation, and nobody without the installation's key can try names against it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Of samples and of what holds them; a bare name with one of these is a path as well.
_SAMPLE_ENDINGS = (
    "jpe?g|png|webp|gif|bmp|tiff?|heic|svg|pdf|mp4|avi|mov|mkv|webm|wav|flac|mp3|ogg|npy|npz|parquet|arrow"
    "|jsonl|csv|tsv|tar|tgz|zip|gz|zst|idx|bin|lmdb|tfrecord|mds|txt|xml|html?"
)
_QUOTED = re.compile(r"(?P<quote>['\"])(?P<path>~?/[^'\"\n]+)(?P=quote)")
_ADDRESS = re.compile(r"\b(?P<scheme>s3|gs|hf|az|abfss?|hdfs|file|https?|ftp|msc|ais)://[^\s'\"<>)\]}]+")
_ABSOLUTE = re.compile(r"(?<![\w.>}<:/$-])~?/[^\s'\"<>|,;()\[\]{}:]+")
#: What could be a relative path: atomic, lest a long word without an ending be tried from its every letter.
_WORD = re.compile(r"(?<![\w/.>}-])(?>[^\s'\"<>|,;:()\[\]{}=/]+(?:/[^\s'\"<>|,;:()\[\]{}=/]+)*)")
_SAMPLE_ENDING = re.compile(rf"(?<=[^/])\.(?:{_SAMPLE_ENDINGS})\b", re.IGNORECASE)
#: Manuals that messages of libraries point to.
_MANUALS = ("https://pytorch.org/", "https://docs.pytorch.org/", "https://docs.nvidia.com/")
#: Programs and the libraries of any Python: a path to code is no path to a sample.
_CODE = re.compile(
    r"/(?:site|dist)-packages(?:/|$)|/lib/python3[.\d]*(?:/|$)|\.(?:pyc?|pyx|so(?:\.\d+)*|cpp|cuh?|hp?p?)$"
)
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}$")


def pseudonym(key: bytes, kind: str, text: str) -> str:
    """``kind-`` and twelve letters; letters alone, so that signatures keep them apart from numbers."""
    digest = hmac.new(key, text.encode(errors="replace"), hashlib.sha256).digest()
    return f"{kind}-" + "".join(chr(ord("a") + byte % 26) for byte in digest[:12])


@dataclass(frozen=True, kw_only=True)
class RedactedPaths:
    """How paths are told: ``roots`` maps folders of the profile to its words, ``code`` stays as it is."""

    key: bytes
    roots: Mapping[str, str]
    code: Sequence[str]

    def in_text(self, text: str) -> str:
        """Every path in a text, quoted or not, address or not."""
        text = _QUOTED.sub(lambda match: f"{match['quote']}{self.told(match['path'])}{match['quote']}", text)
        text = _ADDRESS.sub(self._address, text)
        text = _ABSOLUTE.sub(lambda match: self.told(match[0]), text)
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def named(self, text: str) -> str:
        """A text of the operator's with the profile's words for its folders, and nothing else changed."""
        for folder in sorted(self.roots, key=len, reverse=True):
            if self.roots[folder].startswith("{"):
                text = re.sub(rf"{re.escape(folder)}(?![\w.-])", self.roots[folder], text)
        return text

    def told(self, path: str) -> str:
        """One whole path, whatever characters it has."""
        plain = os.path.normpath(path)
        known = [folder for folder in (*self.roots, *self.code) if _is_in(plain, folder)]
        folder = max(known, key=len, default="")
        if folder in self.roots:
            word = self.roots[folder]
            return word if plain == folder else f"{word}/{self._name(plain.removeprefix(folder))}"
        return path if folder or _CODE.search(plain) else self._name(plain)

    def _address(self, match: re.Match[str]) -> str:
        if match[0].startswith(_MANUALS):
            return match[0]
        return f"{match['scheme']}://{self._name(match[0])}"

    def _word(self, word: str) -> str:
        """A word up to the last ending of a sample by its pseudonym; one without such an ending as it is."""
        end = max((ending.end() for ending in _SAMPLE_ENDING.finditer(word)), default=0)
        return self._name(word[:end]) + word[end:] if end else word

    def _name(self, path: str) -> str:
        ending = _ENDING.search(path)
        return pseudonym(self.key, "file", path.strip("/")) + (ending[0].lower() if ending else "")


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
