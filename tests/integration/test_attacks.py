"""Known tricks against the service, the mirror and the queue that no other test tries.

docs/reference/attacks.md lists all tricks, with the test of each.
"""

from __future__ import annotations

import ast
import pickle
import re
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kombu.exceptions import ContentDisallowed
from kombu.serialization import loads
from sqlalchemy import inspect

from bisection.adapters.catalogue import BadCatalogueFile, Catalogue
from bisection.adapters.mirror import Mirror, MirrorError
from bisection.adapters.queue import make_celery
from tests.integration.test_service_api import problem
from tests.integration.test_service_live import serve
from tests.unit.service.scene import REQUEST, ServiceScene

ROOT = Path(__file__).parents[2]
ROOMS = ("firstbad", "service", "workers", "bisect", "memory_models")
#: Modules that run what they read.
UNSAFE = frozenset({"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServiceScene]:
    with ServiceScene(tmp_path) as running:
        yield running


@pytest.mark.parametrize(
    "url", ["ext::sh -c touch% {}", "--upload-pack=touch {}", "-u./{}", "fd::17", "http://127.0.0.1:9/x"]
)
def test_git_runs_nothing_and_asks_nobody_that_a_url_smuggles_in(tmp_path: Path, url: str) -> None:
    made = tmp_path / "made"
    mirror = Mirror(tmp_path / "x.git", url.format(made))
    with pytest.raises(MirrorError):
        mirror.fetch()
    assert not made.exists()


@pytest.mark.parametrize(
    "word",
    [
        "' OR '1'='1",
        "%",
        "'; DROP TABLE bisections; --",
        '" OR ""="',
        "\\",
        "x' UNION SELECT 1 --",
    ],
)
def test_words_of_a_query_are_never_sql(scene: ServiceScene, word: str) -> None:
    created = scene.client.post("/v1/bisections", json=REQUEST).json()["id"]
    for name in ("text", "source"):
        answer = scene.client.get("/v1/bisections", params={name: word})
        assert answer.status_code == 200, answer.text
        assert answer.json()["items"] == []
    problem(scene.client.get(f"/v1/bisections/{created}' OR '1'='1"), 404, "not-found")
    with scene.database.read() as connection:
        assert "bisections" in inspect(connection).get_table_names()


def test_a_token_in_an_address_opens_nothing(scene: ServiceScene) -> None:
    for name in ("token", "access_token", "firstbad_token"):
        problem(scene.anonymous.get("/v1/bisections", params={name: scene.token}), 401, "unauthenticated")


def test_no_other_site_may_read_or_write_through_a_browser(scene: ServiceScene) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (
        scene.anonymous.options("/v1/bisections", headers=asked),
        scene.client.get("/v1/bisections", headers={"Origin": "https://evil.example"}),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_the_host_header_decides_no_address(scene: ServiceScene) -> None:
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    answer = scene.client.post("/v1/bisections", json=REQUEST, headers=headers)
    assert answer.status_code == 202
    assert "evil.example" not in answer.text + str(answer.headers)
    assert urlsplit(answer.headers["location"]).hostname == "testserver"


@pytest.mark.parametrize(
    "smuggled",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"Content-Length: +5\r\n\r\nhello",
        b"X: a\x00b\r\n\r\n",
        b"X : a\r\n\r\n",
    ],
)
def test_one_request_is_never_read_as_two(scene: ServiceScene, smuggled: bytes) -> None:
    with serve(scene) as url, socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as line:
        line.settimeout(10)
        line.sendall(b"POST /v1/bisections HTTP/1.1\r\nHost: x\r\n" + smuggled)
        line.shutdown(socket.SHUT_WR)
        said = b""
        while chunk := line.recv(65536):
            said += chunk
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", said)
    assert len(statuses) <= 1
    assert set(statuses) <= {b"400", b"401"}


def test_the_queue_takes_json_and_nothing_that_runs_when_it_is_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return open, (str(tmp_path / "made"), "w")

    accepted = make_celery("memory://").conf.accept_content
    for kind, body in (
        ("application/x-python-serialize", pickle.dumps(Trap())),
        ("application/x-yaml", b"!!python/object/apply:os.system [id]"),
    ):
        with pytest.raises(ContentDisallowed):
            loads(body, content_type=kind, content_encoding="binary", accept=accepted)  # type: ignore[no-untyped-call]
    assert not (tmp_path / "made").exists()


@cache
def _modules() -> tuple[tuple[Path, ast.AST], ...]:
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    return tuple((path, ast.parse(path.read_text(encoding="utf-8"))) for path in files)


def test_no_module_imports_what_runs_what_it_reads() -> None:
    found = []
    for path, tree in _modules():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [(path, name) for name in names if name.split(".")[0] in UNSAFE]
    assert found == []


def test_yaml_is_read_by_safe_loaders_alone_and_nothing_is_evaluated() -> None:
    found = []
    for path, tree in _modules():
        if "probe" in path.parts or "nightly" in path.parts:
            continue  # these run within the training job
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load"):
                found.append((path, called))
            if called == "yaml.load" and "_UniqueKeys" not in ast.unparse(node):
                found.append((path, ast.unparse(node)))
    assert found == []


def test_a_catalogue_file_that_multiplies_itself_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "x.yaml").write_text("name: x\n" + "\n".join(lines) + "\nlaunch: *a11\n")
    with pytest.raises(BadCatalogueFile, match="no such field"):
        Catalogue(tmp_path).profiles()


def test_every_locked_package_has_a_hash_and_only_those_are_installed() -> None:
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text())
    packages = [block for block in blocks if "==" in block.split("\n")[0]]
    assert len(packages) > 50
    assert [block.split()[0] for block in packages if "--hash=sha256:" not in block] == []
    installs = [
        line
        for line in (ROOT / "scripts" / "setup.sh").read_text().splitlines()
        if re.search(r"pip\"? install", line)
    ]
    assert installs
    assert [
        line for line in installs if "--require-hashes" not in line and "--no-deps -e ." not in line
    ] == []
