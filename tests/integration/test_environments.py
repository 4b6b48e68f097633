"""Environments for real: venvs from locks, overlays from wheels, failures, builders at once and killed."""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from bisection.adapters.catalogue import Environment
from tests.wheel_scene import write_wheel
from workers import building
from workers.building import BuildHostError, BuildSteps, build_once
from workers.environments import Environments, PreparedEnvironment
from workers.requirement_lock import Unbuildable
from workers.supervision import Cancelled

#: Python 3.12 warns of a fork beside another test's threads; the child here takes none of their locks.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

VENV = {"kind": "venv", "lock": "requirements.lock"}


def says(environment: PreparedEnvironment, code: str) -> str:
    path = os.pathsep.join(str(overlay.folder) for overlay in environment.overlays)
    done = subprocess.run(
        [str(environment.python), "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip()


def interpreter(**fields: object) -> Environment:
    return Environment.model_validate({"kind": "interpreter", "python": sys.executable, **fields})


@pytest.fixture
def links(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        write_wheel(folder, "photos", version, f"version = '{version}'\n")
    write_wheel(folder, "base", "1.0", "version = 'base 1.0'\n")
    return folder


@pytest.fixture(autouse=True)
def only_local_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_a_venv_holds_what_its_lock_says_and_is_made_once(tmp_path: Path, links: Path) -> None:
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)]})
    lines: list[str] = []
    first = Environments(tmp_path / "root").prepare(wanted, "base==1.0\n", {}, progress=lines.append)
    assert says(first, "import base; print(base.version)") == "base 1.0"
    assert "installing 1 locked packages with uv" in lines
    lines.clear()
    second = Environments(tmp_path / "root").prepare(wanted, "# same\nbase==1.0\n", {}, progress=lines.append)
    assert (second, lines) == (first, [])
    assert list(Path(first.python).parent.parent.rglob("base*.pyc")), (
        "imports are compiled once, at the build"
    )


def test_a_moved_overlay_needs_no_second_environment(tmp_path: Path, links: Path) -> None:
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)], "overlay": ["photos"]})
    environments = Environments(tmp_path / "root")
    old = environments.prepare(wanted, "base==1.0\nphotos==1.0\n", {})
    new = environments.prepare(wanted, "base==1.0\nphotos==2.0\n", {})
    moved = environments.prepare(wanted, "base==1.0\nphotos==1.0\n", {"photos": "2.0"})
    assert old.python == new.python
    assert old.key != new.key
    assert moved == new
    code = "import base, photos; print(base.version, photos.version)"
    assert says(old, code) == "base 1.0 1.0"
    assert says(new, code) == "base 1.0 2.0"
    assert len([path for path in (tmp_path / "root" / "environments").iterdir() if path.name[0] != "."]) == 1


def test_an_overlay_wheel_with_other_content_is_another_overlay(tmp_path: Path, links: Path) -> None:
    wanted = interpreter(lock="lock", overlay=["photos"], find_links=[str(links)])
    environments = Environments(tmp_path / "root")
    before = environments.prepare(wanted, "photos==1.0\n", {})
    write_wheel(links, "photos", "1.0", "version = 'rebuilt'\n")
    after = environments.prepare(wanted, "photos==1.0\n", {})
    assert says(before, "import photos; print(photos.version)") == "1.0"
    assert says(after, "import photos; print(photos.version)") == "rebuilt"
    assert before.key != after.key


def test_of_several_wheels_of_a_version_the_one_for_this_python_is_taken(tmp_path: Path, links: Path) -> None:
    write_wheel(links, "photos", "1.0", "version = 'of another Python'\n", tag="cp27-none-any")
    wanted = interpreter(lock="lock", overlay=["photos"], find_links=[str(links)])
    prepared = Environments(tmp_path / "root").prepare(wanted, "photos==1.0\n", {})
    assert says(prepared, "import photos; print(photos.version)") == "1.0"


def test_an_interpreter_is_used_as_it_is(tmp_path: Path) -> None:
    prepared = Environments(tmp_path).prepare(interpreter(), None, {})
    assert (prepared.python, prepared.overlays) == (Path(sys.executable), ())


def test_an_interpreter_that_does_not_run_is_the_hosts_fault(tmp_path: Path) -> None:
    with pytest.raises(BuildHostError, match=r"Set environment\.python"):
        Environments(tmp_path).prepare(interpreter(python="/bin/false"), None, {})


def test_an_interpreter_that_does_not_exist_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(Unbuildable, match=r"/nowhere/python does not exist .* set environment\.python"):
        Environments(tmp_path).prepare(interpreter(python="/nowhere/python"), None, {})


def test_an_unknown_package_is_unbuildable_and_remembered_with_its_log(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)]})
    environments = Environments(tmp_path / "root")
    lines: list[str] = []
    for memory in (False, True):
        with pytest.raises(Unbuildable, match="no-such-package") as refusal:
            environments.prepare(wanted, "base==1.0\nno-such-package==1.0\n", {}, progress=lines.append)
        assert refusal.value.step == "installing 2 locked packages with uv"
        assert ("remembered from" in refusal.value.log) == memory
    assert lines.count("making a virtual environment") == 1
    monkeypatch.setattr(building, "FAILURE_SECONDS", 0.0)
    write_wheel(links, "no_such_package", "1.0", "")
    assert environments.prepare(wanted, "base==1.0\nno-such-package==1.0\n", {}).python.exists()


@pytest.mark.parametrize(
    ("fields", "lock", "packages", "says"),
    [
        ({}, None, {}, r"requirements\.lock is not in the tree"),
        ({}, "base>=1\n", {}, "line 1"),
        ({"overlay": ["photos"]}, "base==1.0\n", {}, "no line for the overlay photos"),
        ({"pip_first": ["torch"]}, "base==1.0\n", {}, "pip_first names torch"),
    ],
)
def test_a_lock_that_cannot_serve_is_unbuildable(
    tmp_path: Path, fields: dict[str, object], lock: str | None, packages: dict[str, str], says: str
) -> None:
    with pytest.raises(Unbuildable, match=says):
        Environments(tmp_path).prepare(Environment.model_validate({**VENV, **fields}), lock, packages)


def test_what_pip_installs_first_is_installed_by_pip(tmp_path: Path, links: Path) -> None:
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)], "pip_first": ["base"]})
    lines: list[str] = []
    prepared = Environments(tmp_path / "root").prepare(
        wanted, "base==1.0\nphotos==1.0\n", {}, progress=lines.append
    )
    assert "installing base with pip" in lines
    assert says(prepared, "import base, photos; print(base.version, photos.version)") == "base 1.0 1.0"


def test_an_index_that_cannot_be_reached_says_nothing_about_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(BuildHostError):
        Environments(tmp_path / "root").prepare(Environment.model_validate(VENV), "six==1.17.0\n", {})


def test_packages_come_from_the_index_where_no_folder_has_them(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_NO_INDEX")
    monkeypatch.delenv("PIP_NO_INDEX")
    fields = {"find_links": [str(links)], "overlay": ["photos"]}
    wanted = Environment.model_validate({**VENV, **fields})
    lock = "six==1.17.0\nidna==3.10\nphotos==2.0\n"
    prepared = Environments(tmp_path / "root").prepare(wanted, lock, {})
    code = "import six, idna, photos; print(six.__version__, idna.__version__, photos.version)"
    assert says(prepared, code) == "1.17.0 3.10 2.0"


# -- once, by whichever worker comes first ------------------------------------------


def _build_slowly(folder: Path, steps: BuildSteps) -> None:
    steps.run(
        "slowly", [sys.executable, "-c", "import time; open('started', 'a').write('x'); time.sleep(1.5)"]
    )
    (folder / "started").rename(folder / "built")


def _prepare(kept: Path) -> None:
    build_once(kept, "key", _build_slowly, progress=lambda _: None, cancelled=lambda: False)


def test_builders_at_once_build_once(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=_prepare, args=(tmp_path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert (tmp_path / "key" / "built").read_text() == "x"


def test_a_killed_builder_leaves_no_process_and_the_next_one_starts_anew(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    first = fork.Process(target=_prepare, args=(tmp_path,))
    first.start()
    while not (tmp_path / "key" / "started").exists():
        time.sleep(0.02)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    _prepare(tmp_path)
    assert (tmp_path / "key" / "built").read_text() == "x"


def test_a_cancelled_build_stops_and_leaves_nothing_half_made(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(Cancelled):
        build_once(tmp_path, "key", _build_slowly, progress=lambda _: None, cancelled=stop.is_set)
    assert not (tmp_path / "key").exists()


def test_a_build_command_sees_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTBAD_DATABASE_URL", "postgresql://secret")
    seen: list[str] = []

    def build(folder: Path, steps: BuildSteps) -> None:
        seen.append(steps.run("look", [sys.executable, "-c", "import os; print(dict(os.environ))"]))

    build_once(tmp_path, "key", build, progress=lambda _: None, cancelled=lambda: False)
    assert "PATH" in seen[0]
    assert "secret" not in seen[0]


# -- what else decides an environment, and what is kept ------------------------------


def test_what_the_profile_names_of_the_tree_decides_the_environment(tmp_path: Path, links: Path) -> None:
    inputs = ["pyproject.toml", "docker/patches", "docker/Dockerfile.ci"]
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)], "inputs": inputs})
    tree = tmp_path / "tree"
    (tree / "docker" / "patches").mkdir(parents=True)
    (tree / "pyproject.toml").write_text("[project]\n")

    def key() -> str:
        return Environments(tmp_path / "root").prepare(wanted, "base==1.0\n", {}, tree=tree).key

    keys = [key()]
    (tree / "train.py").write_text("not named\n")
    assert key() == keys[0]
    for name in ("docker/patches/deepep.patch", "docker/Dockerfile.ci", "pyproject.toml"):
        (tree / name).write_text(f"another {name}\n")
        keys.append(key())
    assert len(set(keys)) == len(keys)


def test_only_the_helpers_are_compiled_where_only_the_gitlink_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second tree has another helpers.cpp and the same lock; a third one is the first again."""
    source = (
        "#include <Python.h>\n"
        'static PyModuleDef made = {PyModuleDef_HEAD_INIT, "helpers_cpp", "version VERSION", -1};\n'
        "PyMODINIT_FUNC PyInit_helpers_cpp() { return PyModule_Create(&made); }\n"
    )
    monkeypatch.delenv("UV_NO_INDEX")
    folder = "3rdparty/Megatron-LM/megatron/core/datasets"
    wanted = Environment.model_validate({**VENV, "helpers": [folder, "not/in/this/tree"]})
    environments = Environments(tmp_path / "root")
    for number, version in enumerate((1, 2, 1)):
        tree = tmp_path / f"tree-{number}"
        (tree / folder).mkdir(parents=True)
        (tree / folder / "helpers.cpp").write_text(source.replace("VERSION", str(version)))
        said: list[str] = []
        prepared = environments.prepare(wanted, "pybind11==3.0.1\n", {}, tree=tree, progress=said.append)
        steps = [line for line in said if re.fullmatch(r"making a .*|compiling .*helpers\.cpp", line)]
        assert steps == [
            *(["making a virtual environment"] if number == 0 else []),
            *([f"compiling {folder}/helpers.cpp"] if number < 2 else []),
        ]
        code = f"import sys; sys.path.insert(0, {str(tree / folder)!r}); import helpers_cpp as h"
        assert says(prepared, f"{code}; print(h.__doc__)") == f"version {version}"


def test_helpers_that_do_not_compile_say_so(tmp_path: Path, links: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "helpers.cpp").write_text("no C++\n")
    wanted = interpreter(helpers=["core"])
    with pytest.raises(Unbuildable, match=r"core/helpers\.cpp"):
        Environments(tmp_path / "root").prepare(wanted, None, {}, tree=tmp_path)


def test_a_package_built_from_source_is_built_once_however_many_environments_hold_it(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    builds = tmp_path / "builds"
    backend = (
        "import pathlib, shutil\n"
        "def build_wheel(folder, *_):\n"
        f"    with open({str(builds)!r}, 'a') as log: log.write('x')\n"
        f"    return pathlib.Path(shutil.copy({str(links / 'base-1.0-py3-none-any.whl')!r}, folder)).name\n"
    )
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    sources = tmp_path / "sources"
    sources.mkdir()
    with tarfile.open(sources / "base-1.0.tar.gz", "w:gz") as sdist:
        info = "Metadata-Version: 2.1\nName: base\nVersion: 1.0\n"
        for name, text in (("backend.py", backend), ("pyproject.toml", project), ("PKG-INFO", info)):
            entry = tarfile.TarInfo(f"base-1.0/{name}")
            entry.size = len(text)
            sdist.addfile(entry, io.BytesIO(text.encode()))
    (tmp_path / "photos").mkdir()
    shutil.copy(links / "photos-2.0-py3-none-any.whl", tmp_path / "photos")
    wanted = Environment.model_validate({**VENV, "find_links": [str(sources), str(tmp_path / "photos")]})
    environments = Environments(tmp_path / "root")
    first = environments.prepare(wanted, "base==1.0\n", {})
    second = environments.prepare(wanted, "base==1.0\nphotos==2.0\n", {})
    assert first.key != second.key
    assert says(second, "import base, photos; print(base.version, photos.version)") == "base 1.0 2.0"
    assert builds.read_text() == "x"


def test_the_environment_that_was_longest_not_used_goes_and_one_in_use_stays(
    tmp_path: Path, links: Path
) -> None:
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)]})
    environments = Environments(tmp_path / "root", budget_bytes=1)
    in_use = environments.prepare(wanted, "base==1.0\n", {})
    unused = environments.prepare(wanted, "photos==1.0\n", {}).python
    assert in_use.python.exists()
    assert unused.exists(), "whoever made it may start it"
    said: list[str] = []
    newest = environments.prepare(wanted, "photos==2.0\n", {}, progress=said.append)
    assert [path.exists() for path in (in_use.python, unused, newest.python)] == [True, False, True]
    assert any("threw out the environment" in line for line in said)
    again = environments.prepare(wanted, "photos==1.0\n", {})
    assert says(again, "import photos; print(photos.version)") == "1.0"


def test_what_a_trial_holds_outlives_its_worker(tmp_path: Path, links: Path) -> None:
    """The worker is gone, a process of the trial holds the descriptor: nothing is thrown out."""
    wanted = Environment.model_validate({**VENV, "find_links": [str(links)]})
    environments = Environments(tmp_path / "root", budget_bytes=1)
    held = environments.prepare(wanted, "base==1.0\n", {})
    with subprocess.Popen(["sleep", "60"], pass_fds=held.locks) as trial:
        python = held.python
        del held
        environments.prepare(wanted, "photos==1.0\n", {})
        environments.prepare(wanted, "photos==2.0\n", {})
        assert python.exists()
        trial.kill()
    environments.prepare(wanted, "base==1.0\nphotos==2.0\n", {})
    assert not python.exists()
