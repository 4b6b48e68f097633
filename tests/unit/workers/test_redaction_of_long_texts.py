"""Texts that a hostile job writes to keep its worker busy: reading them takes time in proportion to them.

Before, a megabyte of one letter took hours. A reader that tried each start again would not end in this test.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.ci_logs import read_log
from workers.credentials import without_credentials
from workers.redacted_paths import _SAMPLE_ENDINGS, RedactedPaths
from workers.redaction import Redaction
from workers.signatures import normalise

PATHS = RedactedPaths(key=b"k", roots={"/data": "{data}"}, code=("/w",))
#: As it was written first: right, and quadratic.
PLAIN = re.compile(
    rf"(?<![\w/.>}}-])[^\s'\"<>|,;:()\[\]{{}}=/]+(?:/[^\s'\"<>|,;:()\[\]{{}}=/]+)*\.(?:{_SAMPLE_ENDINGS})\b",
    re.IGNORECASE,
)
UNITS = [
    "\\",
    "@",
    "%s",
    "a@",
    "@/",
    "@@/.png",
    "@.png@",
    " ",
    "\t",
    "a.",
    "/a",
    "'/",
    "[rank0]: ",
    "token=",
    "a: ",
]


@pytest.mark.parametrize("unit", UNITS)
def test_a_long_text_of_one_word_is_read_to_its_end(unit: str) -> None:
    text = unit * (2**17 // len(unit))
    PATHS.in_text(text)
    Redaction(paths=PATHS).log(text)
    without_credentials(text)
    read_log(text)
    normalise(text)


@given(st.text(alphabet="ab/.@-> '=}png", max_size=40))
def test_paths_are_found_where_the_plain_rule_finds_them(text: str) -> None:
    relative = text.replace("/", "") if text.startswith("/") else text
    quiet = RedactedPaths(key=b"k", roots={}, code=())
    before = re.sub(r"(?<![\w.>}<:/$-])~?/[^\s'\"<>|,;()\[\]{}:]+|['\"]~?/[^'\"\n]+['\"]", "", relative)
    assert quiet.in_text(before) == PLAIN.sub(lambda match: quiet._name(match[0]), before)
