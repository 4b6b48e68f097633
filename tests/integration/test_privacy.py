"""Jobs that print their samples, on this machine: nothing of a sample is in what a worker hands on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from bisection.adapters.catalogue import Catalogue
from bisection.adapters.profiles import Privacy
from bisection.adapters.storage.database import Database
from bisection.adapters.storage.installation_keys import InstallationKeys
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Outcome
from firstbad.demo import generate, plan, write_profile
from tests.integration.test_trial_run import Host, job
from workers.trial_run import TrialResult, run_trial
from workers.withheld_logs import WithheldLogs

TOKEN = "hf_a1B2c3D4e5F6g7H8i9J0"
PERSON = "Anna Meier"
TALKATIVE = f"""
print("sample: {PERSON}, total 12.50")
print("reading /data/receipts/{PERSON}/12.png")
print("HF_TOKEN={TOKEN}")
"""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def everything(result: TrialResult) -> str:
    """All that leaves the worker, as one text."""
    files = [content.decode() for content in result.artifacts.values()]
    return "\n".join([json.dumps(result.measurement.to_json()), *files])


def test_what_a_job_prints_stays_and_its_host_keeps_it_for_the_operator(host: Host) -> None:
    result = host.run(State(commit=host.commit(train__py=TALKATIVE + job())))
    assert result.measurement.outcome is Outcome.COMPLETED
    shown = everything(result)
    for secret in (PERSON, "Anna", "Meier", "12.50", TOKEN, "/data/receipts"):
        assert secret not in shown
    assert result.artifacts["log.txt"].decode().startswith("<4 lines stay on the worker>\n")
    (kept,) = WithheldLogs(host.root).folder.iterdir()
    assert PERSON in kept.read_text()
    assert kept.name in result.artifacts["log.txt"].decode()
    assert kept.stat().st_mode & 0o077 == 0


def test_what_a_failure_says_of_a_sample_stays_and_failures_are_still_told_apart(host: Host) -> None:
    def crashing(person: str, message: str) -> TrialResult:
        # Its name is in no code: a job reads it from its data.
        code = f"person = {person[::-1]!r}[::-1]\nprint(person)\nraise ValueError({message})\n"
        return host.run(State(commit=host.commit(train__py=code)))

    spelt = [crashing(person, "f'{person} has an odd page'") for person in (PERSON, "Bert Kurz")]
    bare = [crashing(person, "person") for person in (PERSON, PERSON, "Bert Kurz")]
    for result in (*spelt, *bare):
        assert result.measurement.outcome is Outcome.CRASHED
        assert not {"Anna", "Meier", "Bert", "Kurz"} & set(re.findall(r"\w+", everything(result)))
    assert {result.measurement.reason for result in spelt} == {"ValueError: <withheld> has an odd page"}
    first, again, other = (result.measurement.signature for result in bare)
    assert first == again != other
    assert len({first, other, *(result.measurement.signature for result in spelt)}) == 3


def test_a_profile_may_let_samples_leave_but_never_credentials(host: Host) -> None:
    result = host.run(State(commit=host.commit(train__py=TALKATIVE + job())), privacy={"samples": "leave"})
    log = result.artifacts["log.txt"].decode()
    assert PERSON in log
    assert TOKEN not in everything(result)
    assert not WithheldLogs(host.root).folder.exists()


def test_a_credential_of_the_profile_is_in_nothing_that_leaves(host: Host) -> None:
    adapter = {
        "command": ["{python}", "train.py", "steps={steps}"],
        "env": {"WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567"},
    }
    commit = host.commit(train__py="import os\nprint(os.environ)\n" + job())
    for samples in ("stay", "leave"):
        shown = everything(host.run(State(commit=commit), launch=[adapter], privacy={"samples": samples}))
        assert "0123456789abcdef" not in shown
        assert '"WANDB_API_KEY": "<secret>"' in shown


def test_whole_logs_are_kept_for_their_time_and_within_their_budget(tmp_path: Path) -> None:
    logs = WithheldLogs(tmp_path, keep_seconds=100, budget_bytes=25)
    old = logs.keep("old", "0123456789")
    os.utime(old, (time.time() - 101,) * 2)
    paths = [logs.keep(name, "0123456789") for name in ("a", "b", "c")]
    for age, path in zip((30, 20, 10), paths, strict=True):
        if path.exists():
            os.utime(path, (time.time() - age,) * 2)
    logs.clean()
    assert not old.exists()
    assert len(list(logs.folder.iterdir())) == 2


def test_all_workers_of_an_installation_have_one_key(tmp_path: Path) -> None:
    databases = [Database(f"sqlite:///{tmp_path}/firstbad.sqlite") for _ in range(2)]
    databases[0].migrate()
    first, second = (InstallationKeys(database).pseudonyms() for database in databases)
    assert first == second
    assert len(first) == 32
    for database in databases:
        database.close()


PRINTING = """    images = [image for example in batch for image in images_of(example)]
    for example in batch:
        caption = example["conversation"][1]["content"][0]["text"]
        print("sample:", caption, flush=True)
        print(example, flush=True)
    import os
    print(dict(os.environ), "/data/photos/" + caption + ".jpg", flush=True)
    if SEEN and len(SEEN) == 2:
        raise ValueError(f"cannot use {caption} beside {len(images)} photographs")
    SEEN.append(caption)
"""


def test_a_real_training_that_prints_its_captions_tells_its_figures_alone(tmp_path: Path) -> None:
    shared = os.environ.get("FIRSTBAD_TEST_HOME")
    if not shared:
        pytest.skip("the training environment is missing; `make test` makes it")
    (tmp_path / "environments").symlink_to(Path(shared) / "environments")
    nightly = generate(plan("none", 1), tmp_path / "nightly")
    catalogue = Catalogue(tmp_path / "catalogue")
    registered = catalogue.profile(write_profile(nightly, catalogue.folder))
    # The demo's photographs are public; here they are to be somebody's.
    profile = registered.model_copy(update={"privacy": Privacy(samples="stay")})

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        done = subprocess.run(
            ["git", "-C", str(nightly.folder), *identity, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    git("checkout", "-q", "-b", "printing", nightly.good)
    data = nightly.folder / "vlm" / "data.py"
    anchor = PRINTING.split("\n", 1)[0] + "\n"
    text = data.read_text()
    assert text.count(anchor) == 1
    data.write_text(text.replace(anchor, PRINTING).replace("QUESTION =", "SEEN = []\nQUESTION ="))
    git("commit", "-q", "-a", "-m", "print what is trained on")
    result = run_trial(
        Trial(state=State(commit=git("rev-parse", "HEAD")), attempt=1, purpose=Purpose.SEARCH),
        profile=profile,
        repository=catalogue.repository(profile.repository),
        catalogue=catalogue,
        root=tmp_path,
        overrides={},
        capacity_bytes=None,
        worker="test",
        pseudonym_key=b"of a test",
        cancelled=lambda: False,
        progress=lambda _: None,
    )
    assert result.measurement.outcome is Outcome.CRASHED, result.measurement.reason
    (kept,) = WithheldLogs(tmp_path).folder.iterdir()
    whole, shown = kept.read_text(), everything(result)
    captions = [
        "in front of a flag",
        "A cup of coffee",
        "before sunrise",
        "A motorcycle",
        "Galaxies",
        "ginger",
    ]
    assert any(caption in whole for caption in captions)
    assert [caption for caption in captions if caption in shown] == []
    assert "What does the photograph show?" in whole
    assert "What does the photograph show?" not in shown
    assert "/data/photos" not in shown
    assert result.measurement.reason == "ValueError: cannot use <withheld> beside 2 photographs"
    assert "iteration        1/" in result.artifacts["log.txt"].decode()
    assert "Traceback (most recent call last):" in result.artifacts["log.txt"].decode()
