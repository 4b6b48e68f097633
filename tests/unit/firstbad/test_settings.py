"""Settings come from the environment, and a value that cannot be used is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from firstbad.settings import broker_socket, read_settings


def test_state_lives_in_the_users_state_folder_unless_told_otherwise() -> None:
    assert read_settings({"XDG_STATE_HOME": "/var/x"}).home == Path("/var/x/firstbad")
    assert read_settings({"FIRSTBAD_HOME": "/srv/fb"}).home == Path("/srv/fb")


def test_the_database_and_the_broker_are_bundled_unless_named() -> None:
    bundled = read_settings({"FIRSTBAD_HOME": "/srv/fb"})
    assert bundled.database_url.database == "/srv/fb/firstbad.sqlite"
    assert bundled.bundles_broker
    shared = read_settings({"FIRSTBAD_HOME": "/srv/fb", "FIRSTBAD_BROKER_URL": "redis://cache:6379/0"})
    assert not shared.bundles_broker


@pytest.mark.parametrize("port", ["eighty", "0", "65536", "-1", "80.5"])
def test_a_port_that_is_none_is_refused_by_name(port: str) -> None:
    with pytest.raises(ValueError, match="FIRSTBAD_PORT"):
        read_settings({"FIRSTBAD_PORT": port})


def test_a_home_with_a_long_path_gets_its_socket_elsewhere() -> None:
    short, long = Path("/srv/fb"), Path("/srv") / ("x" * 120)
    assert broker_socket(short).is_relative_to(short)
    assert not broker_socket(long).is_relative_to(long)
    assert len(str(broker_socket(long))) < 100
    assert broker_socket(long) == broker_socket(long)
    assert broker_socket(long) != broker_socket(long / "y")


@pytest.mark.parametrize("name", ["q?x", "a#b", "%41", 'a "quoted" b', "two words", "größe"])
def test_a_home_may_have_any_name(name: str) -> None:
    home = Path("/srv") / name
    settings = read_settings({"FIRSTBAD_HOME": str(home)})
    assert settings.database_url.database == f"{home}/firstbad.sqlite"
    assert settings.broker_url.removeprefix("redis+socket://") == str(broker_socket(home))
    assert not set("?#% ") & set(settings.broker_url)


def test_what_is_kept_for_how_long_is_said_in_days_or_forever() -> None:
    keeping = read_settings({"FIRSTBAD_HOME": "/srv/fb"}).keeping
    assert (keeping.logs_days, keeping.artifacts_days, keeping.bisections_days) == (30, 90, None)
    said = {
        "FIRSTBAD_KEEP_LOGS": "0.5",
        "FIRSTBAD_KEEP_ARTIFACTS": "forever",
        "FIRSTBAD_KEEP_BISECTIONS": "365",
    }
    keeping = read_settings({"FIRSTBAD_HOME": "/srv/fb", **said}).keeping
    assert (keeping.logs_days, keeping.artifacts_days, keeping.bisections_days) == (0.5, None, 365)


@pytest.mark.parametrize("days", ["long", "-1", "nan", "inf", "1e9"])
def test_a_number_of_days_that_is_none_is_refused_by_name(days: str) -> None:
    with pytest.raises(ValueError, match="FIRSTBAD_KEEP_LOGS"):
        read_settings({"FIRSTBAD_KEEP_LOGS": days})


def test_a_public_address_is_taken_without_its_last_slash_and_refused_where_it_is_none() -> None:
    assert read_settings({"FIRSTBAD_PUBLIC_URL": "https://fb.example/team/"}).public_url == (
        "https://fb.example/team"
    )
    for text in ("fb.example", "https://fb.example/?x", "javascript:alert(1)"):
        with pytest.raises(ValueError, match="FIRSTBAD_PUBLIC_URL"):
            read_settings({"FIRSTBAD_PUBLIC_URL": text})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FIRSTBAD_DATABASE_URL", "postgresql+psycopg://u:geheim@db/f"),
        ("FIRSTBAD_BROKER_URL", "rediss://:geheim@b/0"),
    ],
)
def test_a_url_with_a_password_may_stand_in_a_file(tmp_path: Path, name: str, value: str) -> None:
    file = tmp_path / "secret"
    file.write_text(value + "\n")
    settings = read_settings({"FIRSTBAD_HOME": "/srv/fb", f"{name}_FILE": str(file)})
    database = settings.database_url.render_as_string(hide_password=False)
    assert value in (database, settings.broker_url)

    with pytest.raises(ValueError, match=f"{name} and {name}_FILE are both set"):
        read_settings({name: value, f"{name}_FILE": str(file)})
    with pytest.raises(ValueError, match=f"{name}_FILE names {file}/none, which cannot be read"):
        read_settings({f"{name}_FILE": f"{file}/none"})
    file.write_text("\n")
    with pytest.raises(ValueError, match=f"{name}_FILE names {file}, which is empty"):
        read_settings({f"{name}_FILE": str(file)})


def test_a_database_url_that_is_none_is_refused_without_being_shown() -> None:
    with pytest.raises(ValueError, match="FIRSTBAD_DATABASE_URL is no database URL") as refused:
        read_settings({"FIRSTBAD_DATABASE_URL": "postgresql//u:geheim@db"})
    assert "geheim" not in str(refused.value)


def test_what_vouches_for_the_broker_and_how_lines_look_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FIRSTBAD_BROKER_CA names /srv/none, which is no file"):
        read_settings({"FIRSTBAD_BROKER_CA": "/srv/none"})
    with pytest.raises(ValueError, match="FIRSTBAD_LOG_FORMAT is 'xml'; give text or json"):
        read_settings({"FIRSTBAD_LOG_FORMAT": "xml"})
    ca = tmp_path / "ca.pem"
    ca.touch()
    settings = read_settings({"FIRSTBAD_BROKER_CA": str(ca), "FIRSTBAD_LOG_FORMAT": "json"})
    assert (settings.broker_ca, settings.logs_json) == (ca, True)


def test_the_reference_names_every_variable_that_is_read_and_no_other() -> None:
    root = Path(__file__).parents[3]
    source = "".join((root / "firstbad" / name).read_text() for name in ("settings.py", "asking.py"))
    read = set(re.findall(r'_(?:secret|days)\(environment, "(FIRSTBAD_\w+)"', source))
    read |= set(re.findall(r'(?:environment|os\.environ)(?:\.get\(|\[)"(FIRSTBAD_\w+)"', source))
    read |= {f"{name}_FILE" for name in re.findall(r'_secret\(environment, "(FIRSTBAD_\w+)"', source)}
    assert len(read) == len(set(re.findall(r"FIRSTBAD_[A-Z_]+[A-Z]", source)))
    page = (root / "docs/reference/settings.md").read_text()
    assert set(re.findall(r"^\| `(FIRSTBAD_\w+)`", page, re.MULTILINE)) == read
