"""A PostgreSQL server of its own, where Debian's or another one is installed; gone when it is closed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from bisection.adapters.storage.database import Database

#: After a kill the lock file of the server before is believed until its process is reaped.
_STARTS, _PAUSE_SECONDS = 6, 1.0


def binaries() -> Path | None:
    """The folder with initdb and postgres, the newest version's; None where there is none."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].split(".")[0])
    )
    on_path = shutil.which("initdb")
    if on_path:
        found.append(Path(on_path).resolve())
    return found[-1].parent if found else None


class PostgreSQL:
    """Started by its constructor, on a free port of the loopback address; the user is `firstbad`."""

    def __init__(self) -> None:
        folder = binaries()
        if folder is None:
            raise FileNotFoundError("no PostgreSQL is installed")
        self._binaries = folder
        self._template: str | None = None
        # A server refuses to run as root, and its user has to get at the folder.
        self._home = Path(tempfile.mkdtemp(prefix="firstbad-postgresql-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            entry = pwd.getpwnam(self._user)
            os.chown(self._home, entry.pw_uid, entry.pw_gid)
        self._run(
            "initdb",
            "-D",
            str(self._home / "data"),
            "-U",
            "firstbad",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._start()

    def _start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self._home} -c max_connections=200"
        for attempt in range(_STARTS):
            try:
                self._run(
                    "pg_ctl",
                    "-D",
                    str(self._home / "data"),
                    "-l",
                    str(self._home / "log"),
                    "-o",
                    options,
                    "-w",
                    "start",
                )
                break
            except subprocess.CalledProcessError:
                if attempt == _STARTS - 1:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def kill_and_start_again(self) -> None:
        """As after a crash of the server: what was committed is there, every connection is gone."""
        postmaster = int((self._home / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        self._start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        if self._user:
            command = ["runuser", "-u", self._user, "--", *command]
        # Its output goes to a file: a server that inherits a pipe would keep it open.
        with tempfile.TemporaryFile("w+") as out:
            try:
                subprocess.run(command, check=True, cwd="/", stdout=out, stderr=subprocess.STDOUT)
            except subprocess.CalledProcessError as error:
                out.seek(0)
                error.add_note(out.read()[-2000:])
                raise

    def new_database(self) -> str:
        """URL of an empty database."""
        return self._create("template0")

    def migrated_database(self) -> str:
        """URL of a database with our newest schema; a copy of one, which takes no time."""
        if self._template is None:
            url = self.new_database()
            database = Database(url)
            database.migrate()
            database.close()
            self._template = url.rpartition("/")[2]
        return self._create(self._template)

    def _create(self, template: str) -> str:
        name = f"t{secrets.token_hex(6)}"
        server = f"host=127.0.0.1 port={self.port} user=firstbad dbname=postgres"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql+psycopg://firstbad@127.0.0.1:{self.port}/{name}"

    def close(self) -> None:
        self._run("pg_ctl", "-D", str(self._home / "data"), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._home, ignore_errors=True)
