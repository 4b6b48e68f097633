"""Every reader of what strangers write, each with inputs for it and what it may raise: nothing else.

A reader that raises what is not named here, or that never ends, has failed.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from pydantic import ValidationError

from bisection.adapters.catalogue import Catalogue, CatalogueError
from bisection.adapters.run_reports import storable
from bisection.adapters.standard_webhooks import is_signed, secrets_in
from bisection.adapters.storage import json_text
from bisection.allocations import AllocationTable, allocation_delta
from bisection.configuration_delta import configuration_delta, show_value, value_type
from bisection.ledger import LedgerEntry
from bisection.rendering.escaping import code_block, code_span, markup, prose, terminal_safe, visible
from bisection.way_back import git_bisect_log, launch_command, override_value
from memory_models.configurations import read_configuration
from service.ci_reports import CiReport, _parse
from service.github import EVENTS, read_delivery
from service.problems import Problem
from tests.fuzz.hostile_inputs import as_bytes, odd_texts, spoilt, spoilt_text, values
from tests.unit.memory_models.bridge_configurations import qwen_recipe
from tests.unit.report import samples
from tests.unit.service.scene import profile_file, run_payload
from workers.ci_logs import read_log, text_of
from workers.credentials import without_credentials
from workers.evidence import recorded_configuration
from workers.rank_files import RankFile, parse_strictly
from workers.redacted_paths import RedactedPaths
from workers.redaction import Redaction
from workers.requirement_lock import Unbuildable, as_overrides, read_lock, with_overrides
from workers.signatures import Failure, failure_in_log, failure_kind, failure_signature
from workers.uv_lock import plain_lock


@dataclass(frozen=True)
class Reader:
    """``read`` may raise ``refusals`` and nothing else. ``cost``: examples in CI are divided by it."""

    inputs: st.SearchStrategy[Any]
    read: Callable[[Any], object]
    refusals: tuple[type[Exception], ...]
    cost: int = 1


LOG = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/train.py", line 3, in <module>
[rank0]:     main()
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.1 GiB
Traceback (most recent call last):
  File "a.py", line 1
ValueError: bad value: 3 (password=hunter2hunter2)
\x1b[31m2026-11-30T00:00:00.0000000Z ##[error]Process completed with exit code 1.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
NCCL WARN Call to connect returned Connection refused
"""
ODD_YAML = "a: &a [*a]\n<<: *b\n? [x]\n: !!int x\nd: 2001-02-30\n!!python/object/apply:os.system [id]"
LOCK = """torch==2.7.0 ; python_version < "3.13" \\
    --hash=sha256:00
numpy[x, y]==1.0  # via torch
-e git+https://example.org/x
"""
UV_LOCK = """version = 1
requires-python = ">=3.11"
[[package]]
name = "job"
version = "0.1"
source = { virtual = "." }
dependencies = [{ name = "iniconfig" }]
[[package]]
name = "iniconfig"
version = "2.0.0"
source = { registry = "https://pypi.org/simple" }
"""
PROJECT = """[project]
name = "job"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["iniconfig"]
"""
RANK_FILE: dict[str, Any] = {
    "version": 1, "rank": 0, "world_size": 1, "status": "failed", "device": "cpu", "hardware": "cpu",
    "error": {"type": "E", "message": "m", "frames": ["/w/a.py:f"], "text": LOG},
    "peak": {"rank": 0, "step": 1, "phase": "forward", "instant": "i", "allocated_bytes": 5,
             "reserved_bytes": 9, "breakdown": [
                 {"component": "experts", "category": "activations", "bytes": 5}]},
    "steps": [{"step": 0, "peak_bytes": 5, "retained_bytes": 1, "seconds": 0.1, "loss_tokens": 8,
               "image_tokens": 2, "padding_tokens": 0}],
    "data": {"real": True, "images": 3}, "trainable": {"a": 1}, "imports": {"m": "/w/m.py"}, "notes": ["n"],
}  # fmt: skip
ALLOCATIONS = {
    "version": 1, "rank": 0, "allocated_bytes": 7, "left_out_bytes": 2, "notes": ["n"],
    "rows": [{"component": "experts", "path": "layers.1", "frames": ["moe.py:1 f"], "bytes": 5, "count": 1,
              "phase": "forward"}],
}  # fmt: skip
CI_REPORT = CiReport.model_config["json_schema_extra"]["examples"][0]  # type: ignore[index]


def _lock(text: str) -> None:
    pins = read_lock(text, "requirements.lock")
    with_overrides(pins, as_overrides(pins), "requirements.lock")


def _uv(texts: tuple[str, str]) -> None:
    files = {"uv.lock": texts[0], "pyproject.toml": texts[1]}
    plain_lock("uv.lock", files.get, must_be_current=True)


def _log(content: bytes) -> None:
    text = text_of(content)
    read_log(text)
    failure = failure_in_log(text) or Failure(type="E", message=text, text=text)
    failure_kind(failure)
    storable(failure_signature(failure, [Path("/w")]), 100)
    told = without_credentials(text)
    assert "hunter2hunter2" not in told or "password=hunter2hunter2" not in text
    Redaction(paths=RedactedPaths(key=b"k", roots={"/data": "{data}"}, code=("/w",))).log(text)


def _github(given: tuple[str, bytes]) -> None:
    event, body = given
    delivery = EVENTS[event].model_validate(json.loads(body))
    read_delivery(delivery, WEBHOOK)


def _signed(given: tuple[str, str, str, bytes]) -> None:
    secret, stamp, header, body = given
    for one in secrets_in(secret.encode(errors="replace")):
        assert not is_signed(one, "id", stamp, body, header)


def _rank_file(content: bytes) -> None:
    row = parse_strictly(content)
    json.dumps(row, allow_nan=False).encode()
    Redaction(paths=RedactedPaths(key=b"k", roots={"/data": "{data}"}, code=("/w",))).rank_file(content)
    RankFile.model_validate(row)


def _allocations(content: bytes) -> None:
    table = AllocationTable.from_json(parse_strictly(content))
    allocation_delta(table, table)


def _ledger(row: Any) -> None:
    entry = LedgerEntry.from_json(row)
    assert LedgerEntry.from_json(json.loads(json.dumps(entry.to_json()))) is not None


def _catalogue(given: tuple[str, str]) -> None:
    kind, text = given
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kind / "x.yaml"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        catalogue = Catalogue(Path(folder))
        (catalogue.profiles if kind == "profiles" else catalogue.repositories)()


def _configuration(content: bytes) -> None:
    config = recorded_configuration(content)
    json_text.write(config)
    read_configuration(config, world_size=8)


def _delta(given: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for change in configuration_delta(*given):
        for value in (change.before, change.after):
            show_value(value, value_type(value))


def _words(given: tuple[str, dict[str, Any]]) -> None:
    text, overrides = given
    for line in (visible(text), code_span(text), prose(text), markup(text)):
        assert "\n" not in line
        assert "\x1b" not in line
    assert "\x1b" not in terminal_safe(text)
    assert "\x1b" not in code_block(text)
    shell = launch_command(samples.LAUNCH, {"k": text})
    with suppress(ValueError):  # a half of a quote in a text that is shown, not run
        shlex.split(str(shell))
    for value in overrides.values():
        override_value(value)
    assert git_bisect_log(samples.experts(subject=text).spec.range, {}, culprit=None) == ""


def _profile_text(row: Any) -> str:
    try:
        return yaml.safe_dump(row)
    except (yaml.YAMLError, UnicodeError):
        return repr(row)


PROFILE = profile_file("x", capacity_bytes=5, privacy={"samples": "stay"}, isolation={"memory_bytes": 5})
REPOSITORY = {
    "name": "x", "url": "https://example.org/x.git", "pins": {"a": "b"},
    "webhook": {"github": "o/r", "workflows": ["n"], "branches": ["main"], "profile": "x",
                "secret_file": "/s"},
}  # fmt: skip


def _webhook() -> Any:
    from bisection.adapters.nightlies import Webhook

    return Webhook.model_validate(REPOSITORY["webhook"])


WEBHOOK = _webhook()
_ENTRY = samples.experts().ledger[0].to_json()
_mappings = st.dictionaries(odd_texts, values, max_size=4)
_json_bytes = st.one_of(st.binary(max_size=60), values.map(as_bytes))

READERS: Mapping[str, Reader] = {
    "requirement locks": Reader(spoilt_text(LOCK), _lock, (Unbuildable,), 2),
    "uv locks": Reader(
        st.tuples(spoilt_text(UV_LOCK), st.one_of(st.just(PROJECT), spoilt_text(PROJECT))), _uv,
        (Unbuildable,), 20
    ),
    "logs": Reader(
        st.one_of(
            st.binary(max_size=200), spoilt_text(LOG).map(lambda text: text.encode(errors="surrogatepass")),
            st.binary(max_size=200).map(lambda rest: b"PK\x03\x04" + rest),
        ),
        _log, (),
    ),
    "github deliveries": Reader(
        st.tuples(
            st.sampled_from(sorted(EVENTS)), st.one_of(_json_bytes, spoilt(run_payload()).map(as_bytes))
        ),
        _github, (ValidationError, json.JSONDecodeError, UnicodeDecodeError),
    ),
    "reports of a ci": Reader(st.one_of(_json_bytes, spoilt(CI_REPORT).map(as_bytes)), _parse, (Problem,)),
    "signatures": Reader(st.tuples(odd_texts, odd_texts, odd_texts, st.binary(max_size=40)), _signed, ()),
    "rank files": Reader(
        st.one_of(_json_bytes, spoilt(RANK_FILE).map(as_bytes)), _rank_file, (ValueError,)
    ),
    "allocations": Reader(
        st.one_of(_json_bytes, spoilt(ALLOCATIONS).map(as_bytes)), _allocations, (ValueError,)
    ),
    "ledger entries": Reader(spoilt(_ENTRY), _ledger, (ValueError,)),
    "catalogue files": Reader(
        st.one_of(
            st.tuples(st.just("profiles"), spoilt(PROFILE).map(_profile_text)),
            st.tuples(st.just("repositories"), spoilt(REPOSITORY).map(_profile_text)),
            st.tuples(st.just("profiles"), spoilt_text(yaml.safe_dump(PROFILE), ODD_YAML)),
        ),
        _catalogue, (CatalogueError,), 2,
    ),
    "recorded configurations": Reader(
        st.one_of(_json_bytes, spoilt(qwen_recipe()).map(as_bytes)), _configuration, (ValueError,), 2
    ),
    "configuration deltas": Reader(
        st.tuples(_mappings, _mappings),
        _delta, (), 4,
    ),
    "words of strangers": Reader(
        st.tuples(odd_texts, st.dictionaries(odd_texts, values, max_size=3)), _words, (), 4
    ),
}  # fmt: skip
