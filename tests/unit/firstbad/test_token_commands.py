"""`firstbad tokens` on a database of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bisection.adapters.storage.tokens import Scope, Tokens
from firstbad.bootstrap import open_database
from firstbad.command_line import app
from firstbad.settings import read_settings


def call(home: Path, *words: str) -> Result:
    return CliRunner(env={"FIRSTBAD_HOME": str(home)}).invoke(app, ["tokens", *words])


@pytest.fixture
def known(tmp_path: Path) -> Tokens:
    return Tokens(open_database(read_settings({"FIRSTBAD_HOME": str(tmp_path)})))


def test_a_token_is_made_shown_once_exchanged_and_revoked(tmp_path: Path, known: Tokens) -> None:
    words = ("create", "nightly", "--scope", "read", "--scope", "write", "--days", "30", "--json")
    made = json.loads(call(tmp_path, *words).stdout)
    caller = known.caller(made["token"])
    assert caller is not None
    assert (caller.name, caller.scopes) == ("nightly", frozenset({Scope.READ, Scope.WRITE}))
    assert made["in_force"]
    assert made["expires_at"] > made["created_at"]

    listed = call(tmp_path, "list").output
    assert "nightly" in listed
    assert made["token"] not in listed

    second = json.loads(call(tmp_path, "rotate", made["id"], "--json").stdout)
    assert known.caller(made["token"]) is None
    assert second["scopes"] == ["read", "write"]
    third = json.loads(call(tmp_path, "rotate", second["id"], "--keep", "1", "--json").stdout)
    assert known.caller(second["token"]) is not None
    assert {row["id"]: row["in_force"] for row in json.loads(call(tmp_path, "list", "--json").stdout)} == {
        made["id"]: False,
        second["id"]: True,
        third["id"]: True,
    }

    assert call(tmp_path, "revoke", third["id"]).exit_code == 0
    assert known.caller(third["token"]) is None
    again = call(tmp_path, "revoke", third["id"])
    assert again.exit_code == 2
    assert "no token" in again.stderr


def test_an_unknown_scope_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    refused = call(tmp_path, "create", "x", "--scope", "everything")
    assert refused.exit_code == 2
    assert "the scopes are read" in refused.stderr
