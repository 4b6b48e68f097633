"""What training jobs write as JSON: read to values that everything after can write again, or refused."""

from __future__ import annotations

import json

import pytest

from workers.evidence import recorded_configuration
from workers.rank_files import parse_strictly


@pytest.mark.parametrize("word", ["1e400", "-1e400", "NaN", "Infinity", "-Infinity", "9" * 400 + ".5"])
def test_a_number_that_is_not_finite_is_refused_however_it_is_written(word: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        parse_strictly(f'{{"train": {{"lr": [{word}]}}}}'.encode())


def test_half_a_surrogate_pair_is_replaced_in_keys_and_values_and_a_whole_pair_is_kept() -> None:
    read = parse_strictly(rb'{"a\ud800": ["\udfff", {"b": "\ud83d\ude00"}]}')
    assert read == {"a\ufffd": ["\ufffd", {"b": "\U0001f600"}]}
    assert json.dumps(read, ensure_ascii=False).encode("utf-8")


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    for content in (b'{"a": "\xed\xa0\x80"}', b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16")):
        with pytest.raises(ValueError, match="decode"):
            parse_strictly(content)


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_nesting_that_a_later_reader_could_not_follow_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="nested deeper than 100"):
        parse_strictly(b'{"a":' * depth + b"1" + b"}" * depth)


@pytest.mark.parametrize("content", [b"[1]", b'"x"', b"null", b"5"])
def test_a_recorded_configuration_that_is_no_object_counts_as_missing_and_says_why(content: bytes) -> None:
    with pytest.raises(ValueError, match="the recorded configuration is not a mapping"):
        recorded_configuration(content)


def test_a_recorded_configuration_that_is_no_json_counts_as_missing_and_says_why() -> None:
    with pytest.raises(ValueError, match="the recorded configuration cannot be read: 1e999 is no number"):
        recorded_configuration(b'{"lr": 1e999}')
