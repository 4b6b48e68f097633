"""Container images of states: built by a real Podman, once, from what the profile names and nothing else."""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bisection.adapters.catalogue import Catalogue, Profile
from bisection.adapters.training_environments import Environment
from bisection.commits import State
from bisection.ledger import Purpose, Trial
from bisection.measurement import Outcome
from tests.podman_scene import Podman, host_mounts, why_not
from tests.repository_scene import RepositoryScene
from workers.building import BuildHostError
from workers.environments import Environments, PreparedEnvironment
from workers.requirement_lock import Unbuildable
from workers.trial_run import run_trial

DOCKERFILE = """\
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY docker/patches/deepep.patch /deepep.patch
RUN cat /deepep.patch > /patched
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    folder = tmp_path_factory.mktemp("podman")
    missing = why_not(folder / "asked")
    if missing:
        pytest.skip(missing)
    made = Podman(folder / "own")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def base(podman: Podman) -> str:
    """The id of an image with a shell and cat."""
    programs = [str(Path(found).resolve()) for name in ("sh", "cat") if (found := shutil.which(name))]
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    libraries = set(re.findall(r"(/\S+\.so[.\d]*)", linked))
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w", dereference=True) as tar:
        for name in libraries:
            tar.add(name)
        for program, name in zip(programs, ("bin/sh", "bin/cat"), strict=True):
            tar.add(program, arcname=name)
        for name in ("proc", "sys", "dev", "etc", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    identity = podman.asked("import", "--quiet", "-", stdin=tree.getvalue())
    return identity if identity.startswith("sha256:") else f"sha256:{identity}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A state's files."""
    files = {
        "docker/Dockerfile.ci": DOCKERFILE,
        "docker/patches/deepep.patch": "--- the first pin\n",
        "uv.lock": "version = 1\n",
        "train.py": "pass\n",
    }
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


def wanted(base: str, **fields: Any) -> Environment:
    return Environment.model_validate(
        {
            "kind": "image",
            "python": "/opt/venv/bin/python",
            "dockerfile": "docker/Dockerfile.ci",
            "inputs": ["docker/patches", "uv.lock"],
            "base_image": base,
            "build_options": ["--isolation=chroot", "--network=host"],
            **fields,
        }
    )


def prepare(root: Path, environment: Environment, tree: Path, **options: Any) -> PreparedEnvironment:
    return Environments(root, **options).prepare(environment, None, {}, tree=tree, image_program="podman")


def test_an_image_is_built_from_the_named_inputs_and_its_tag_is_the_environments_key(
    tmp_path: Path, podman: Podman, base: str, tree: Path
) -> None:
    first = prepare(tmp_path / "root", wanted(base), tree)
    said = podman.asked("run", "--rm", "--network=none", first.image, "/bin/cat", "/patched")
    assert said == "--- the first pin"
    assert f"localhost/firstbad-environment:{first.key}" in podman.asked(
        "image", "inspect", "--format", "{{.RepoTags}}", first.image
    )
    (tree / "train.py").write_text("another\n")
    assert prepare(tmp_path / "root", wanted(base), tree) == first, "what is not named decides nothing"
    (tree / "docker/patches/deepep.patch").write_text("--- the second pin\n")
    moved = prepare(tmp_path / "root", wanted(base), tree)
    assert moved.key != first.key
    said = podman.asked("run", "--rm", "--network=none", moved.image, "/bin/cat", "/patched")
    assert said == "--- the second pin"


@pytest.mark.parametrize(
    ("line", "step", "log"),
    [
        ("RUN cat /no-such-patch", r"step 4/4: RUN cat /no-such-patch", "No such file"),
        ("COPY train.py /train.py", r"step 4/4: COPY train\.py", "train.py"),
    ],
)
def test_an_image_that_cannot_be_built_is_unbuildable_at_its_instruction_and_remembered(
    tmp_path: Path, base: str, tree: Path, line: str, step: str, log: str
) -> None:
    with (tree / "docker/Dockerfile.ci").open("a") as dockerfile:
        dockerfile.write(f"{line}\n")
    for memory in (False, True):
        with pytest.raises(Unbuildable, match=step) as refusal:
            prepare(tmp_path / "root", wanted(base), tree)
        assert log in refusal.value.log
        assert ("remembered from" in refusal.value.log) == memory


def _prepare_and_tell(root: Path, environment: Environment, tree: Path, said: Path) -> None:
    lines: list[str] = []
    Environments(root).prepare(
        environment, None, {}, tree=tree, image_program="podman", progress=lines.append
    )
    said.write_text("\n".join(lines))


def test_workers_at_once_build_one_image(tmp_path: Path, base: str, tree: Path) -> None:
    fork = multiprocessing.get_context("fork")
    told = [tmp_path / "said-0", tmp_path / "said-1"]
    workers = [
        fork.Process(target=_prepare_and_tell, args=(tmp_path / "root", wanted(base), tree, said))
        for said in told
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    built = [said.read_text().splitlines().count("building the image") for said in told]
    assert sorted(built) == [0, 1]


@pytest.mark.long
def test_an_image_that_somebody_removed_is_built_again(
    tmp_path: Path, podman: Podman, base: str, tree: Path
) -> None:
    first = prepare(tmp_path / "root", wanted(base), tree)
    podman.asked("image", "rm", first.image)
    key = first.key
    del first  # whoever uses it would be waited for
    again = prepare(tmp_path / "root", wanted(base), tree)
    assert podman.asked("image", "inspect", "--format", "{{.Id}}", again.image)
    assert again.key == key


@pytest.mark.long
def test_the_image_that_was_longest_not_used_goes_and_one_in_use_stays(
    tmp_path: Path, podman: Podman, base: str, tree: Path
) -> None:
    images, in_use = [], []
    for pin in ("first", "second", "third"):
        (tree / "docker/patches/deepep.patch").write_text(f"{pin}\n")
        prepared = prepare(tmp_path / "root", wanted(base), tree, budget_bytes=1)
        images.append(prepared.image)
        in_use += [prepared] if pin == "first" else []
        del prepared
    left = podman.asked("images", "--all", "--quiet", "--no-trunc").split()
    assert [any(image in name for name in left) for image in images] == [True, False, True]


def test_an_image_by_its_digest_is_used_as_it_is_and_never_removed(
    tmp_path: Path, podman: Podman, base: str, tree: Path
) -> None:
    named = Environment.model_validate({"kind": "image", "python": "/usr/bin/python3", "image": base})
    prepared = prepare(tmp_path / "root", named, tree, budget_bytes=1)
    assert prepared.image in base
    handed_on = Environments(tmp_path / "root").prepare(named, None, {}, image_program=None)
    assert handed_on.image == base
    assert podman.asked("image", "inspect", "--format", "{{.Id}}", base)


def test_an_image_that_cannot_be_pulled_says_nothing_about_the_state(tmp_path: Path, podman: Podman) -> None:
    absent = f"localhost/nowhere@sha256:{'0' * 64}"
    named = Environment.model_validate({"kind": "image", "python": "/usr/bin/python3", "image": absent})
    with pytest.raises(BuildHostError, match="pulling localhost/nowhere"):
        prepare(tmp_path / "root", named, tmp_path)


def test_a_program_that_is_missing_is_the_hosts_fault(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(BuildHostError, match="podman is not on this host"):
        prepare(tmp_path / "root", wanted(f"sha256:{'0' * 64}"), tree)


SAYS = "raise ValueError(open('/deepep.patch').read().strip())\n"


@pytest.mark.long
def test_each_state_trains_in_the_image_of_its_own_dockerfile(tmp_path: Path, podman: Podman) -> None:
    """Two commits with another patch: each trial sees its own, in an image that holds nothing else."""
    scene = RepositoryScene(tmp_path / "nightly")
    scene.write("docker/Dockerfile.ci", "\n".join(DOCKERFILE.splitlines()[:3]) + "\n")
    identity = podman.image_of_the_host()
    base = identity if identity.startswith("sha256:") else f"sha256:{identity}"
    for kind in ("profiles", "repositories"):
        (tmp_path / "catalogue" / kind).mkdir(parents=True)
    entry = yaml.safe_dump({"name": "nightly", "url": scene.url})
    (tmp_path / "catalogue" / "repositories" / "nightly.yaml").write_text(entry)
    python = str(Path(sys.base_prefix).resolve() / "bin" / f"python3.{sys.version_info.minor}")
    profile = Profile.model_validate(
        {
            "name": "tiny",
            "repository": "nightly",
            "environment": wanted(base, inputs=["docker/patches"], python=python).model_dump(),
            "container": {"runtime": "podman", "mounts": host_mounts()},
            "launch": [{"command": ["{python}", "train.py"]}],
            "privacy": {"samples": "leave"},
            "data": {"kind": "mock"},
        }
    )
    catalogue = Catalogue(tmp_path / "catalogue")
    keys = set()
    for pin in ("the first pin", "the second pin"):
        scene.write("docker/patches/deepep.patch", f"{pin}\n")
        measured = run_trial(
            Trial(state=State(commit=scene.commit(pin, train__py=SAYS)), attempt=1, purpose=Purpose.SEARCH),
            profile=profile,
            repository=catalogue.repository("nightly"),
            catalogue=catalogue,
            root=tmp_path / "root",
            overrides={},
            capacity_bytes=None,
            worker="w1",
            pseudonym_key=b"of a test",
            cancelled=lambda: False,
            progress=lambda _: None,
        ).measurement
        assert (measured.outcome, measured.reason) == (Outcome.CRASHED, f"ValueError: {pin}")
        keys.add(measured.environment_key)
    assert len(keys) == 2
