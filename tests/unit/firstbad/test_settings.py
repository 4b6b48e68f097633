"""Settings come from the environment, and a value that cannot be used is named."""

from __future__ import annotations

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
