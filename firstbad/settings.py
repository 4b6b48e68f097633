"""What the operator's environment says. The only place that reads environment variables."""

from __future__ import annotations

import hashlib
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from bisection.adapters.storage.removals import Keeping

#: A unix socket's path is limited to 107 bytes by the kernel's sockaddr_un.
_LONGEST_SOCKET_PATH = 100
DEFAULT_PORT = 8321
_PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Where state lives and how the parts find one another.

    FIRSTBAD_HOME          folder of all state (default: the user's state directory)
    FIRSTBAD_PORT          port of the API on loopback (default 8321)
    FIRSTBAD_DATABASE_URL  another database than the SQLite file in the home
    FIRSTBAD_BROKER_URL    another broker than the bundled one
    FIRSTBAD_BROKER_CA     certificates (PEM) that vouch for a broker behind rediss:// (default: the system's)
    FIRSTBAD_PUBLIC_URL    how people reach the API, where that is not this machine's loopback address
    FIRSTBAD_CATALOGUE     another folder of profiles/ and repositories/ than the home's

    In days after a bisection has ended, or `forever`:

    FIRSTBAD_KEEP_LOGS        what its trials and builds printed (default 30)
    FIRSTBAD_KEEP_ARTIFACTS   every file of its trials (default 90)
    FIRSTBAD_KEEP_BISECTIONS  all of it, its report too (default forever)

    FIRSTBAD_LOG_FORMAT    what services and workers write: `text` (default), or `json`, one object a line

    The two URLs hold passwords, so each may stand in a file instead, which FIRSTBAD_DATABASE_URL_FILE or
    FIRSTBAD_BROKER_URL_FILE names.
    """

    home: Path
    port: int
    port_is_fixed: bool  #: the operator named it: do not look for another one
    database_url: URL
    broker_url: str
    catalogue: Path
    keeping: Keeping = Keeping()
    public_url: str = ""  #: without a slash at its end; "": nobody else reaches it
    broker_ca: Path | None = None  #: None: what the system trusts
    logs_json: bool = False

    @property
    def bundles_broker(self) -> bool:
        return self.broker_url == bundled_broker_url(self.home)

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @property
    def server_file(self) -> Path:
        """Where a running `firstbad up` says how to reach it."""
        return self.home / "server.json"


def broker_socket(home: Path) -> Path:
    """The bundled broker's socket: in the home, or elsewhere, where that path cannot stand in a URL."""
    inside = home / "valkey" / "valkey.sock"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH and _PLAIN_PATH.fullmatch(str(inside)):
        return inside
    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"firstbad-{os.getuid()}-{name}" / "valkey.sock"


def bundled_broker_url(home: Path) -> str:
    return f"redis+socket://{broker_socket(home)}"


def here_folder(key: str, environment: Mapping[str, str] | None = None) -> Path:
    """Where `firstbad run` keeps what it knows of one repository.

    In FIRSTBAD_HOME where that is set, else below the user's cache directory.
    """
    environment = os.environ if environment is None else environment
    if environment.get("FIRSTBAD_HOME"):
        return Path(environment["FIRSTBAD_HOME"]).absolute() / "here" / key
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).absolute() / "firstbad" / key


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Raises ValueError, naming the variable, for a value that cannot be used."""
    environment = os.environ if environment is None else environment
    state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    home = Path(environment.get("FIRSTBAD_HOME") or Path(state) / "firstbad").absolute()
    port = environment.get("FIRSTBAD_PORT", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"FIRSTBAD_PORT is {port!r}; give a port number from 1 to 65535")
    database_url = _secret(environment, "FIRSTBAD_DATABASE_URL")
    return Settings(
        home=home,
        port=int(port) if port else DEFAULT_PORT,
        port_is_fixed=bool(port),
        database_url=_database_url(database_url)
        if database_url
        else URL.create("sqlite", database=str(home / "firstbad.sqlite")),
        broker_url=_secret(environment, "FIRSTBAD_BROKER_URL") or bundled_broker_url(home),
        broker_ca=_broker_ca(environment.get("FIRSTBAD_BROKER_CA", "")),
        logs_json=_log_format(environment.get("FIRSTBAD_LOG_FORMAT", "")) == "json",
        catalogue=Path(environment.get("FIRSTBAD_CATALOGUE") or home / "catalogue"),
        keeping=Keeping(
            logs_days=_days(environment, "FIRSTBAD_KEEP_LOGS", 30.0),
            artifacts_days=_days(environment, "FIRSTBAD_KEEP_ARTIFACTS", 90.0),
            bisections_days=_days(environment, "FIRSTBAD_KEEP_BISECTIONS", None),
        ),
        public_url=_public_url(environment.get("FIRSTBAD_PUBLIC_URL", "")),
    )


def _secret(environment: Mapping[str, str], name: str) -> str:
    """The variable's value, or the content of the file that NAME_FILE names; "" for neither."""
    value, file = environment.get(name, ""), environment.get(f"{name}_FILE", "")
    if value and file:
        raise ValueError(f"{name} and {name}_FILE are both set; keep one of them")
    if not file:
        return value
    try:
        value = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"{name}_FILE names {file}, which cannot be read: {reason}") from None
    if not value:
        raise ValueError(f"{name}_FILE names {file}, which is empty")
    return value


def _database_url(text: str) -> URL:
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        # The text itself is not shown: it may hold a password.
        raise ValueError(
            "FIRSTBAD_DATABASE_URL is no database URL; "
            "give one like postgresql+psycopg://user:password@host:5432/name"
        ) from None


def _broker_ca(text: str) -> Path | None:
    if not text:
        return None
    if not Path(text).is_file():
        raise ValueError(f"FIRSTBAD_BROKER_CA names {text}, which is no file; give certificates in PEM")
    return Path(text).absolute()


def _log_format(text: str) -> str:
    if text not in ("", "text", "json"):
        raise ValueError(f"FIRSTBAD_LOG_FORMAT is {text!r}; give text or json")
    return text or "text"


def _public_url(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s?#]+", text):
        raise ValueError(f"FIRSTBAD_PUBLIC_URL is {text!r}; give an address that starts with https://")
    return text.rstrip("/")


def _days(environment: Mapping[str, str], name: str, default: float | None) -> float | None:
    text = environment.get(name, "")
    if not text:
        return default
    if text == "forever":
        return None
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days <= 36500:
        raise ValueError(f"{name} is {text!r}; give a number of days, or `forever`")
    return days
