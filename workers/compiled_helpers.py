"""Megatron Core's compiled helpers: built apart from the environment, and put into a state's tree.

Core reads its text corpora through a C++ module that its first rank compiles at every start, in the tree.
Here it is compiled once for each source and Python, so that a commit which moves Core alone needs no
environment of its own, and ranks need not wait for one another.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from workers.building import BuildSteps, Claim, build_once
from workers.rank_files import RankFileError, read_plain_file
from workers.requirement_lock import Unbuildable

FOLDER = "helpers"
SOURCE = "helpers.cpp"
_SOURCE_LIMIT_BYTES = 2**20
#: How upstream's Makefile names the module; so it is called since Core 0.9.
_NAME = re.compile(r"^LIBNAME\s*\??=\s*([A-Za-z_][A-Za-z0-9_]*)\s*$", re.MULTILINE)
_DEFAULT_NAME = "helpers_cpp"
#: As upstream's Makefile.
_FLAGS = ("-O3", "-Wall", "-shared", "-std=c++17", "-fPIC")
_ASK = """
import json, pybind11, sysconfig
includes = [pybind11.get_include(), sysconfig.get_path("include")]
print(json.dumps([includes, sysconfig.get_config_var("EXT_SUFFIX")]))
"""


def put_helpers(
    root: Path,
    tree: Path,
    folder: str,
    python: Path,
    environment_key: str,
    progress: Callable[[str], None],
    cancelled: Callable[[], bool],
) -> Claim | None:
    """Compiles ``folder``/helpers.cpp of the tree, or takes what was compiled, and puts it beside its source.

    None where the tree has no such source. Raises Unbuildable, BuildHostError or Cancelled.
    """
    source = _read(tree / folder / SOURCE)
    if source is None:
        return None
    named = _NAME.search((_read(tree / folder / "Makefile") or b"").decode(errors="replace"))
    name = named[1] if named else _DEFAULT_NAME
    decides = json.dumps([environment_key, name, hashlib.sha256(source).hexdigest(), _FLAGS])
    key = hashlib.sha256(decides.encode()).hexdigest()[:32]

    def build(place: Path, steps: BuildSteps) -> None:
        (place / SOURCE).write_bytes(source)
        step = f"asking for pybind11, to compile {folder}/{SOURCE}"
        said = steps.run(step, [str(python), "-I", "-c", _ASK])
        includes, suffix = json.loads(said.splitlines()[-1])
        compiler = os.environ.get("CXX") or "c++"
        words = [compiler, *_FLAGS, *(f"-I{path}" for path in includes), str(place / SOURCE)]
        steps.run(f"compiling {folder}/{SOURCE}", [*words, "-o", str(place / f"{name}{suffix}")])

    built = build_once(root / FOLDER, key, build, progress=progress, cancelled=cancelled)
    for module in built.folder.glob(f"{name}*.so"):
        shutil.copy2(module, tree / folder / module.name)
        os.utime(tree / folder / module.name)  # newer than its source: upstream's make finds nothing to do
    return built.claim


def _read(file: Path) -> bytes | None:
    try:
        return read_plain_file(file, _SOURCE_LIMIT_BYTES)
    except RankFileError as error:
        raise Unbuildable(f"reading {file.name}", str(error)) from error
