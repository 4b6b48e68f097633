"""A descent in the report: its words in every format, and its commands in real repositories."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bisection.finding import FindingKind, LevelFinding, LevelKind
from bisection.rendering.html import render_html
from bisection.rendering.markdown import render_markdown
from bisection.rendering.terminal import render_text
from bisection.report import CulpritReport, build_report
from bisection.way_inside import way_inside
from tests.unit.report import samples
from tests.unit.report.test_way_back import commit, git, run_recipe

HOSTILE = "<script>alert(1)</script> @everyone [x](http://evil.example) \u202e"
LIBRARY, KERNEL = "vendor/library", "vendor/library/vendor/kernel"


def found(level: LevelKind, path: str, name: str, **more: object) -> LevelFinding:
    base = LevelFinding(
        level=level,
        path=path,
        title=f"what is in {path}",
        kind=FindingKind.FOUND,
        commits=("d" * 40,),
        names=(name,),
        parent="e" * 40,
        confidence=0.995,
        why="It failed, and the one before passed.",
    )
    return replace(base, **more)  # type: ignore[arg-type]


def report_with(*descent: LevelFinding) -> CulpritReport:
    sample = samples.experts()
    finding = replace(sample.finding, descent=descent)
    return build_report(sample.spec, sample.ledger, finding, sample.evidence)


def test_the_headline_leads_from_the_culprit_to_what_it_carries() -> None:
    factors = found(LevelKind.FACTORS, "", "vendor/library moved to 1234567890")
    pin = found(LevelKind.PIN, LIBRARY, "dddddddddd Keep what nobody needs")
    summary = report_with(factors, pin).summary
    assert "is the first bad commit (confidence" in summary
    assert ", in vendor/library by dddddddddd Keep what nobody needs: experts grew" in summary
    assert "moved to 1234567890" not in summary
    assert ", by vendor/library moved to 1234567890: experts grew" in report_with(factors).summary


def test_the_headline_says_lost_joint_and_undecided() -> None:
    lost = report_with(found(LevelKind.PIN, LIBRARY, "dddddddddd Free them", lost=True)).summary
    assert ", by losing a fix in vendor/library: dddddddddd Free them: " in lost
    parts = ("vendor/library moved to 12", "the source as at 34")
    joint = found(LevelKind.FACTORS, "", "", kind=FindingKind.SET, joint=True, names=parts)
    assert "could not be told apart: vendor/library moved to 12, the source as at 34" in (
        report_with(joint).summary
    )
    undecided = found(LevelKind.PIN, LIBRARY, "", kind=FindingKind.SET, names=("a", "b", "c"))
    assert ", by one of 3 changes in vendor/library: " in report_with(undecided).summary
    unconfirmed = replace(undecided, names=("a1 b",))
    assert ", in vendor/library probably by a1 b, which could not be confirmed: " in (
        report_with(unconfirmed).summary
    )
    either = found(LevelKind.FACTORS, "", "", kind=FindingKind.SET, names=parts)
    assert ", by one of 2 parts of it: " in report_with(either).summary


def test_every_format_tells_the_descent_and_none_is_fooled_by_a_subject() -> None:
    report = report_with(found(LevelKind.PIN, LIBRARY, f"dddddddddd {HOSTILE}", problem="budget-spent"))
    assert CulpritReport.from_json(report.to_json()).to_json() == report.to_json()
    page, text, terminal = render_html(report), render_markdown(report), render_text(report)
    for shown in (page, text, terminal):
        assert "What is in vendor/library" in shown
        assert "dddddddddd" in shown
        assert "\u202e" not in shown
        assert "docs/errors/budget-spent.md" in shown
    assert "<script>" not in page
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert "`dddddddddd <script>" in text


def test_what_a_lock_and_git_say_fools_no_format() -> None:
    words = f"torch torch==1 ; python_version < '{HOSTILE}' -> 2"
    for kind in (FindingKind.FOUND, FindingKind.SET):
        report = report_with(
            found(LevelKind.PACKAGES, "uv.lock", words, kind=kind, why=HOSTILE, title=HOSTILE)
        )
        page, text, terminal = render_html(report), render_markdown(report), render_text(report)
        assert "<script>" not in page
        assert "\u202e" not in page + text + terminal
        outside = re.sub(r"(`+).+?\1", "", text, flags=re.DOTALL)
        assert "@everyone" not in outside
        assert "<script>" not in outside


class Clone:
    """A clone of a repository that pins a library, which pins a kernel: three commits each."""

    def __init__(self, folder: Path) -> None:
        self.kernel = self._repository(folder / "kernel", {})
        self.library = self._repository(folder / "library", {"vendor/kernel": folder / "kernel"})
        self.training = self._repository(folder / "training", {LIBRARY: folder / "library"})
        self.folder = folder / "clone"
        git(folder, "clone", "--quiet", str(folder / "training"), str(self.folder))

    def _repository(self, folder: Path, pins: dict[str, Path]) -> list[str]:
        folder.mkdir()
        git(folder, "init", "--quiet")
        for path, source in pins.items():
            git(folder, "submodule", "add", "--quiet", str(source), path)
        return [commit(folder, f"number {n}", {f"file-{n}.py": str(n)}) for n in range(3)]

    def head(self, path: str) -> str:
        return git(self.folder / path, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_pin_inside_a_pin_goes_back_to_before_the_guilty_commit(clone: Clone) -> None:
    descent = (
        found(LevelKind.PIN, LIBRARY, "x", commits=(clone.library[2],), parent=clone.library[1]),
        found(LevelKind.FACTORS, LIBRARY, "y"),
        found(LevelKind.PIN, KERNEL, "z", commits=(clone.kernel[2],), parent=clone.kernel[1]),
    )
    (recipe,) = way_inside(descent, None)
    run_recipe(clone.folder, recipe)
    assert clone.head(KERNEL) == clone.kernel[1]
    assert clone.head(LIBRARY) == clone.library[2]


def test_a_lost_fix_is_brought_into_the_pin(clone: Clone, tmp_path: Path) -> None:
    git(tmp_path / "library", "checkout", "--quiet", "-b", "side", clone.library[0])
    fix = commit(tmp_path / "library", "the fix", {"fix.py": "1"})
    lost = found(LevelKind.PIN, LIBRARY, "x", commits=(fix,), parent=clone.library[0], lost=True)
    (recipe,) = way_inside((lost,), None)
    run_recipe(clone.folder, recipe)
    assert (clone.folder / LIBRARY / "fix.py").exists()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("torch 2.6.0 -> 2.7.0", ["install", "--no-deps", "torch==2.6.0"]),
        ("torch 2.7.1 -> 2.7.0", ["install", "--no-deps", "torch==2.7.1"]),
        ("apex not there -> 1.0", ["uninstall", "--yes", "apex"]),
    ],
)
def test_a_package_goes_back_alone(name: str, command: list[str]) -> None:
    (recipe,) = way_inside((found(LevelKind.PACKAGES, "uv.lock", name),), None)
    assert list(recipe.commands[0].argv[-len(command) :]) == command


def test_without_a_descent_there_is_no_recipe_of_it() -> None:
    assert way_inside((), None) == ()
    assert way_inside((found(LevelKind.FACTORS, "", "the source as at 12"),), None) == ()
