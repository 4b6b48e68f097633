"""What leaves a worker of a log, a message, a configuration and a path; and that credentials never do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.credentials import without_credentials
from workers.redacted_paths import RedactedPaths
from workers.redaction import Redaction
from workers.signatures import Failure, failure_signature

SAMPLE = "Anna Meier"
PATHS = RedactedPaths(
    key=b"key",
    roots={"/data/receipts": "{data}", "/cache/hf": "$HF_HOME", "/t/trial": "<trial>"},
    code=("/t/trial/workspace", "/usr"),
)
SOURCE = """
FIELDS = {"ground_truth"}
def read(text, rows):
    assert rows > 2, "too few rows: %d of %s" % (rows, text)
    raise ValueError(f"cannot read {text} of {rows} rows")
"""


@pytest.fixture
def redaction(tmp_path: Path) -> Redaction:
    (tmp_path / "reading.py").write_text(SOURCE)
    return Redaction(paths=PATHS, own_folders=(tmp_path,))


def told(redaction: Redaction, message: str, kind: str = "ValueError") -> str:
    return redaction.failure(Failure(type=kind, message=message, frames=("reading.py:read",))).message


KEPT_LINES = [
    " iteration        2/       3 | consumed samples:       8 | elapsed time per iteration (ms): 3268.1 |"
    " learning rate: 1.0E-04 | global batch size:     4 | lm loss: 1.190983E+01 | grad norm: 3.2 |"
    " number of nan iterations:   0 |",
    " [2026-11-30 22:31:02] iteration        1/       3 | consumed samples:            2 |",
    "  hidden_size: 128  (Mcore default: 0)",
    "Theoretical memory footprints: weight and optimizer=115.35 MB",
    "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 1.2 | mem-alloc-retires: 0",
    "Step Time : 3.27s GPU utilization: 57.7MODEL_TFLOP/s/GPU",
    " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 123456",
    "node1:12:34 [0] NCCL WARN Cuda failure 2",
    "[rank0]: Traceback (most recent call last):",
    '  File "/usr/lib/python3.11/runpy.py", line 5, in _run',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 3.00 MiB is free.",
    "ModuleNotFoundError: No module named 'megatron.core'",
    "RuntimeError: shape '[2, 3]' is invalid for input of size 7",
]


@pytest.mark.parametrize("line", KEPT_LINES)
def test_a_line_of_the_machinery_is_kept_word_for_word(redaction: Redaction, line: str) -> None:
    assert redaction.log(line) == line


WITHHELD_LINES = [
    f"sample 3: {SAMPLE}, total 12.50",
    f" iteration 2/ 3 | consumed samples: {SAMPLE} |",
    f" iteration 2/ 3 | {SAMPLE}",
    f"[Rank 0] {SAMPLE}",
    f"    {SAMPLE}",
    f'  File "x.py", line 1, in {SAMPLE}',
    f"{{'text': '{SAMPLE}'}}",
    "x" * 3000 + SAMPLE,
    f"  name: '{SAMPLE}'  (Mcore default: None)",
    f"INFO:data:{SAMPLE}",
    f"NCCL INFO '{SAMPLE}'",
]


@pytest.mark.parametrize("line", WITHHELD_LINES)
def test_any_other_line_stays(redaction: Redaction, line: str) -> None:
    assert redaction.log(f"{line}\n{line}") == "<2 lines stay on the worker>"


def test_a_line_of_code_is_kept_below_its_frame_alone(redaction: Redaction) -> None:
    frame = '  File "/usr/lib/a.py", line 1, in f\n    raise KeyError(key)'
    assert redaction.log(frame) == frame
    assert redaction.log(f"other\n    {SAMPLE}") == "<2 lines stay on the worker>"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"cannot read {SAMPLE} of 12 rows", "cannot read <withheld> of 12 rows"),
        (f"too few rows: 1 of {SAMPLE}", "too few rows: 1 of <withheld>"),
        ("'ground_truth'", "'ground_truth'"),
        (
            "cannot import name 'a' from 'b.c' (/usr/lib/c.py)",
            "cannot import name 'a' from 'b.c' (/usr/lib/c.py)",
        ),
        ("", ""),
    ],
)
def test_a_message_is_shown_as_far_as_code_spells_it(
    redaction: Redaction, message: str, expected: str
) -> None:
    assert told(redaction, message) == expected


RAISED_ON = """
class FlexDispatcher:
    def __init__(self, size):
        assert size > 1, "the dispatcher needs more than one rank"
def build(module, text):
    try:
        return module(text)
    except Exception as error:
        raise type(error)(f"{str(error)} when instantiating {module.__name__}").with_traceback(None)
"""


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "the dispatcher needs more than one rank when instantiating FlexDispatcher",
            "the dispatcher needs more than one rank when instantiating FlexDispatcher",
        ),
        (
            "Anna Meier owes 12 euros when instantiating FlexDispatcher",
            "<withheld> when instantiating FlexDispatcher",
        ),
        (
            "the dispatcher needs more than one rank when instantiating FlexDispatcher"
            " when instantiating FlexDispatcher",
            "the dispatcher needs more than one rank when instantiating FlexDispatcher"
            " when instantiating FlexDispatcher",
        ),
        ("Anna Meier when instantiating AnnaMeier", "<withheld> when instantiating <withheld>"),
    ],
)
def test_a_message_that_is_raised_on_is_told_as_far_as_code_spells_it(
    tmp_path: Path, message: str, shown: str
) -> None:
    (tmp_path / "reading.py").write_text(RAISED_ON)
    assert told(Redaction(paths=PATHS, own_folders=(tmp_path,)), message) == shown


@pytest.mark.parametrize(
    "message",
    [
        SAMPLE,
        f"'{SAMPLE}'",
        "'Meier'",
        f"odd text {SAMPLE}",
        f"No module named '{SAMPLE}'",
        "4711471147114711",
    ],
)
def test_an_unknown_message_is_a_pseudonym_that_tells_it_from_others(
    redaction: Redaction, message: str
) -> None:
    shown = told(redaction, message)
    assert shown.startswith("<message-")
    assert "Meier" not in shown
    assert "4711" not in shown
    assert shown == told(redaction, message)
    assert shown != told(redaction, f"{message} and more")


def test_signatures_keep_failures_apart_and_forget_which_file_it_was(redaction: Redaction) -> None:
    def signature(message: str) -> str:
        failure = Failure(type="ValueError", message=message, frames=("reading.py:read",))
        return failure_signature(redaction.failure(failure), redaction.own_folders)

    assert signature(f"{SAMPLE} is odd") != signature(f"{SAMPLE} is even")
    first = signature("[Errno 2] No such file or directory: '/data/receipts/Anna Meier.png'")
    assert first == signature("[Errno 2] No such file or directory: '/data/receipts/Bert.png'")
    assert first == "ValueError: [Errno <n>] No such file or directory: <path> @ reading.py:read"


def test_a_path_of_data_is_a_pseudonym_below_the_word_of_the_profile() -> None:
    shown = PATHS.told("/data/receipts/2024/Anna Meier.PNG")
    assert shown.startswith("{data}/file-")
    assert shown.endswith(".png")
    assert PATHS.told("/data/receipts") == "{data}"
    moved = RedactedPaths(key=b"key", roots={"/mnt/other": "{data}"}, code=())
    assert moved.told("/mnt/other/2024/Anna Meier.PNG") == shown  # equal on every host
    other_key = RedactedPaths(key=b"other", roots=PATHS.roots, code=())
    assert other_key.told("/data/receipts/2024/Anna Meier.PNG") != shown


@pytest.mark.parametrize(
    "text",
    [
        "/home/a/Meier.jpg", "'/home/a/Anna Meier.jpg'", "s3://bucket/Meier/1.jpg", "~/Meier/1.jpg",
        "Meier/1.webp", "Meier.tar", "/cache/hf/Meier", "/t/trial/tmp/Meier.bin", "https://x.example/Meier",
        "/data/receipts/../Meier",
    ],
)  # fmt: skip
def test_every_spelling_of_a_path_of_data_is_told_by_a_pseudonym(text: str) -> None:
    shown = PATHS.in_text(f"read {text} twice")
    assert "Meier" not in shown
    assert "file-" in shown


@pytest.mark.parametrize(
    "path",
    [
        "/usr/bin/python3",
        "/t/trial/workspace/data/x.png",
        "/x/lib/python3.11/site-packages/torch/a.py",
        "/y/b.py",
    ],
)
def test_paths_of_code_stay(path: str) -> None:
    assert PATHS.told(path) == path


def test_a_configuration_keeps_names_and_numbers_and_withholds_prose(redaction: Redaction) -> None:
    row = {
        "model": {"hidden_size": 64, "pipeline_model_parallel_layout": "E t*3 | t*4 L", "_target_": "a.b.C"},
        "dataset": {
            "path": "/data/receipts/Meier.jsonl",
            "system_prompt": f"You read {SAMPLE}",
            "split": "train",
        },
        "checkpoint": {"load": None, "save": "/t/trial/checkpoints"},
    }
    shown = redaction.configuration(json.dumps(row).encode())
    assert shown["model"] == row["model"]
    assert shown["dataset"]["path"].startswith("{data}/file-")
    assert shown["dataset"]["system_prompt"] == "<text of 19 characters, withheld>"
    assert shown["dataset"]["split"] == "train"
    assert "Meier" not in json.dumps(shown)


def test_a_rank_file_keeps_its_figures_and_tells_its_error_like_a_log(redaction: Redaction) -> None:
    error = {
        "type": "ValueError",
        "message": f"cannot read {SAMPLE} of 12 rows",
        "frames": ["reading.py:read"],
        "text": f"ValueError: {SAMPLE}\n",
    }
    shown = redaction.rank_file(json.dumps({"rank": 0, "error": error, "imports": {"m": "/y/m.py"}}).encode())
    assert shown["error"]["message"] == "cannot read <withheld> of 12 rows"
    assert shown["imports"] == {"m": "/y/m.py"}
    assert "Meier" not in json.dumps(shown)


def test_where_samples_may_leave_all_is_told_as_it_is() -> None:
    redaction = Redaction(paths=None)
    assert redaction.log(f"{SAMPLE} /data/x.png") == f"{SAMPLE} /data/x.png"
    failure = Failure(type="ValueError", message=SAMPLE)
    assert redaction.failure(failure) == failure


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=hf_{}", "hf_{}", '{{"WANDB_API_KEY": "{}"}}', "https://user:{}@host/x", "--hf-token {}",
        "environ({{'MY_SECRET': '{}'}})", "Authorization: Bearer {}", "password: {}",
        "https://{}@github.com/a", "s3_secret_access_key={}",
        "ghp_{}", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_a_credential_is_taken_out_of_any_text(text: str) -> None:
    secret = "a1B2c3D4e5F6g7H8i9J0k1L2"
    shown = without_credentials(f"before {text.format(secret)} after")
    assert secret not in shown
    assert "<secret>" in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "num_tokens: 123456789", "image_token_id=151655", "loss_tokens: 88888888",
        'eos_token: "<|endoftext|>"', "secret_file: /etc/firstbad/x",
        "pad_token=endoftext", '"token": null', "TOKENIZERS_PARALLELISM=false",
    ],
)  # fmt: skip
def test_words_of_a_tokenizer_are_no_credentials(text: str) -> None:
    assert without_credentials(text) == text


def test_a_key_that_the_request_named_is_shown_where_code_fills_it_in(tmp_path: Path) -> None:
    (tmp_path / "reading.py").write_text('raise SystemExit(f"the configuration has no key {key!r}")\n')
    redaction = Redaction(
        paths=PATHS, own_folders=(tmp_path,), asked=frozenset({"train.micro_batch_sise", "micro_batch_sise"})
    )
    message = "the configuration has no key 'train.micro_batch_sise'"
    assert told(redaction, message) == message
    assert "secret" not in told(redaction, "the configuration has no key 'secret'")


def test_a_last_line_without_a_traceback_still_names_the_key_that_it_refuses() -> None:
    redaction = Redaction(paths=PATHS, asked=frozenset({"train.micro_batch_sise", "micro_batch_sise"}))
    line = "train.py: error: unrecognized arguments: train.micro_batch_sise=2 Anna"
    assert redaction.last_words(line) == "... unrecognized arguments ... train.micro_batch_sise"
    assert redaction.last_words("Anna has no key") == "a line that stays on the worker"
