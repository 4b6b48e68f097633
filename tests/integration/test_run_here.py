"""`firstbad run` in real repositories, as a process of its own; beside it, what `git bisect run` says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.repository_scene import RepositoryScene

COMMITS = 20
CULPRIT = 13
#: Reads which commit it is from the tree, and counts its runs outside of it.
SCRIPT = """
import os, pathlib, sys
number = int(pathlib.Path("number.txt").read_text())
runs = pathlib.Path(os.environ["RUNS"]) / str(number)
before = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (before + 1))
"""
FLAKY = f"""{SCRIPT}
sys.exit(1 if number >= {CULPRIT} and not (number in (15, 16) and before == 0) else 0)
"""


class Here:
    """A repository of twenty commits, and `firstbad run` in it."""

    def __init__(self, folder: Path) -> None:
        self.scene = RepositoryScene(folder / "project")
        self.hashes = [
            self.scene.commit(f"change {number}", number__txt=f"{number}\n", sub___kept__txt="kept\n")
            for number in range(1, COMMITS + 1)
        ]
        self.top = self.scene.folder
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "RUNS": str(self.runs)}

    def script(self, text: str) -> str:
        """A file beside the repository, as people have them."""
        file = self.runs.parent / "check.py"
        file.write_text(text, encoding="utf-8")
        return str(file)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "firstbad", "run", *words]

    def run(self, *words: str, folder: str = ".") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.top / folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def found(self, *words: str, folder: str = ".") -> dict[str, Any]:
        done = self.run("--json", *words, folder=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_a_flaky_command_that_misleads_git_bisect_run_does_not_mislead_it(here: Here) -> None:
    script = here.script(FLAKY)
    here.scene.write("mine.txt", "not in git\n")
    markdown, page = here.runs.parent / "report.md", here.runs.parent / "report.html"
    words = ("--good", here.hashes[0], "--markdown", str(markdown), "--html", str(page))
    report = here.found(*words, "--", sys.executable, script)
    culprit = here.hashes[CULPRIT - 1]
    assert report["finding"]["commits"] == [culprit]
    assert report["finding"]["confidence"] > 0.99
    assert f"git bisect bad {culprit}" in report["git_bisect_log"]
    assert culprit[:10] in markdown.read_text(encoding="utf-8")
    assert culprit[:10] in page.read_text(encoding="utf-8")
    assert "check.py" in json.dumps(report["reproduce"])
    # The user's own files, index and refs are as they were, and no environment is left behind.
    assert here.scene.git("status", "--porcelain") == "?? mine.txt"
    assert here.scene.head == here.hashes[-1]
    assert not list(here.runs.parent.glob("cache/firstbad/*/session.json"))

    for file in here.runs.iterdir():
        file.unlink()
    here.scene.git("bisect", "start", "--first-parent", here.hashes[-1], here.hashes[0])
    said = subprocess.run(
        ["git", "bisect", "run", sys.executable, script],
        cwd=here.top, env=here.environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "is the first bad commit" in said
    assert f"{culprit} is the first bad commit" not in said


def test_a_number_needs_no_threshold_and_may_come_from_a_subfolder(here: Here) -> None:
    script = here.script(
        "import os, pathlib, random\n"
        "number = int(pathlib.Path('../number.txt').read_text())\n"
        f"told = (14 if number < {CULPRIT} else 10) + random.Random(os.getpid()).gauss(0, 0.3)\n"
        "pathlib.Path(os.environ['FIRSTBAD_VALUE_FILE']).write_text(str(told))\n"
        "assert os.environ['FIRSTBAD_COMMIT'] and pathlib.Path(os.environ['FIRSTBAD_TRIAL']).is_dir()\n"
    )
    words = (
        "--good",
        here.hashes[0],
        "--value-file",
        "told.txt",
        "--lower-is-worse",
        "--parallel",
        "2",
        "--confidence",
        "0.9",
    )
    report = here.found(*words, "--", sys.executable, script, folder="sub")
    assert report["finding"]["commits"] == [here.hashes[CULPRIT - 1]]
    assert {trial["worker"].split("@")[0] for trial in report["trials"]} == {"run-1", "run-2"}
    assert not report["simulated"]


def test_what_was_measured_outlives_a_command_that_stops_it_and_a_ctrl_c(here: Here) -> None:
    stop = here.runs.parent / "stop"
    script = here.script(
        f"{SCRIPT}\nstop = pathlib.Path({str(stop)!r})\n"
        "if number < 20 and stop.exists(): sys.exit(int(stop.read_text()))\n"
        f"import time; time.sleep(0.5)\nsys.exit(number >= {CULPRIT})\n"
    )
    words = ("--good", here.hashes[0], "--confidence", "0.9", "--", sys.executable, script)
    stop.write_text("130")
    stopped = here.run(*words)
    assert stopped.returncode == 5
    assert "130, which stops the search" in stopped.stderr
    stop.unlink()

    with subprocess.Popen(
        here.command(*words), cwd=here.top, env=here.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while len(list(here.runs.iterdir())) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "the same command goes on" in errors
    assert "going on after" in output

    again = here.run(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{here.hashes[CULPRIT - 1][:10]}" in again.stdout
    assert "going on after" in again.stdout
    ran = sum(len(file.read_text()) for file in here.runs.iterdir())
    shown = here.run(*words)
    assert "this was asked before" in shown.stdout
    assert sum(len(file.read_text()) for file in here.runs.iterdir()) == ran


@pytest.mark.long
def test_another_failure_and_a_commit_without_the_command_are_skipped(here: Here) -> None:
    script = here.script(
        f"{SCRIPT}\nif number == 16: sys.exit(125)\n"
        "if number in (14, 15): raise ImportError('no module of that name')\n"
        f"if number >= {CULPRIT}: raise ValueError('the planted failure')\n"
    )
    report = here.found("--good", here.hashes[5], "--crash", "--", sys.executable, script)
    assert report["finding"]["commits"] == [here.hashes[CULPRIT - 1]]
    verdicts = {trial["position"] + 6: trial["verdict"] for trial in report["trials"]}
    assert {verdicts[number] for number in (14, 15, 16) if number in verdicts} <= {"skip"}
    assert "ValueError: the planted failure" in json.dumps(report["finding"]) + json.dumps(
        report["regression"]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--", "true"), "--good REF"),
        (("--good", "nowhere", "--", "true"), "no commit 'nowhere'"),
        (("--good", "HEAD", "--", "true"), "the same commit"),
        (("--good", "HEAD~1", "--threshold", "1", "--", "true"), "need a number"),
        (("--good", "HEAD~1", "--metric", "(", "--", "true"), "is no pattern"),
        (("--good", "HEAD~1", "--path", "absent", "--", "true"), "relevant_paths"),
        (("--good", "HEAD~1", "--value-file", "../../precious", "--", "true"), "below the folder"),
    ],
)
def test_a_question_that_cannot_be_asked_says_how_to_ask_it(
    here: Here, words: tuple[str, ...], says: str
) -> None:
    done = here.run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stdout + done.stderr


def test_a_repository_in_a_folder_with_a_space_and_absurd_numbers_have_an_answer(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    here = Here(folder)
    here.top = here.top.rename(folder / "re po")
    script = here.script("import os, sys\nprint('v=1e300' if os.path.exists('absent') else 'v=5')\n")
    done = here.run(
        "--good", f"HEAD~{COMMITS - 1}", "--trials", "4", "--metric", r"v=(\S+)", "--threshold", "1e308",
        "--lower-is-worse", "--", sys.executable, script,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode in (0, 4), done.stdout + done.stderr


def test_a_shallow_clone_is_told_how_to_get_its_commits(here: Here, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth", "2", f"file://{here.top}", shallow], check=True)
    here.top = shallow
    done = here.run("--good", "HEAD~1", "--", "true")
    assert done.returncode == 2
    assert "git fetch --unshallow" in done.stderr


def test_outside_of_a_repository_it_says_so(here: Here, tmp_path: Path) -> None:
    del here
    outside = tmp_path / "outside"
    outside.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "firstbad", "run", "--good", "a", "--", "true"],
        cwd=outside, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no work tree of a git repository" in done.stderr
