"""`firstbad tokens`: who may ask this installation what. For its operator, on the host of its database."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from rich.table import Table

from bisection.adapters.storage.tokens import Issued, Scope, Tokens
from firstbad.asking import EXIT_USAGE, Json, fail, out, print_json, say
from firstbad.bootstrap import open_database
from firstbad.settings import read_settings

_Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", help=f"{', '.join(Scope)}; several times.", show_default=Scope.READ.value),
]
_Days = Annotated[
    float | None, typer.Option(min=0.01, max=36500, help="Until it ends.", show_default="never")
]
_Token = Annotated[str, typer.Argument(metavar="TOKEN_ID", help="`firstbad tokens list` shows them.")]

tokens = typer.Typer(
    no_args_is_help=True,
    help="Make, list, revoke and exchange tokens, on the host of the installation's database.",
)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(tokens, name="tokens")


@tokens.command()
def create(
    name: Annotated[str, typer.Argument(help="For whom or what; the audit log repeats it.")],
    scope: _Scopes = None,
    days: _Days = None,
    as_json: Json = False,
) -> None:
    """Make a token. It is shown once, here: only a digest is kept."""
    if not name.strip() or not name.isprintable() or len(name) > 100:
        fail("the name of a token is one line of 1 to 100 printable characters", EXIT_USAGE)
    known = _tokens()
    token = known.issue(name, _scopes(scope), lifetime=timedelta(days=days) if days else None)
    _show(known, token, as_json)


@tokens.command(name="list")
def list_tokens(as_json: Json = False) -> None:
    """All tokens, the newest first, without what is secret of them."""
    rows = _tokens().all()
    if as_json:
        print_json([row.to_json() for row in rows])
        return
    table = Table(box=None, pad_edge=False)
    for name in ("id", "name", "scopes", "created", "stands"):
        table.add_column(name)
    for row in rows:
        table.add_row(row.id, row.name, ", ".join(row.scopes), row.created_at[:19], row.stands)
    out.print(table)


@tokens.command()
def revoke(token: _Token, as_json: Json = False) -> None:
    """End a token at once."""
    if not _tokens().revoke(token):
        fail(f"no token {token!r} is in force; `firstbad tokens list` shows them", EXIT_USAGE)
    say({"revoked": token}, f"token {token} is revoked", as_json)


@tokens.command()
def rotate(
    token: _Token,
    days: _Days = None,
    keep: Annotated[float, typer.Option(min=0, max=8760, help="Hours the old one stays in force.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Make a new token of the same name and scopes, and end the old one."""
    known = _tokens()
    lifetime = timedelta(days=days) if days else None
    made = known.rotate(token, lifetime=lifetime, grace=timedelta(hours=keep))
    if made is None:
        fail(f"no token {token!r} is in force; `firstbad tokens list` shows them", EXIT_USAGE)
    _show(known, made, as_json)


def _tokens() -> Tokens:
    return Tokens(open_database(read_settings()))


def _scopes(words: list[str] | None) -> frozenset[Scope]:
    try:
        return frozenset(Scope(word) for word in words or [Scope.READ])
    except ValueError as error:
        fail(f"{error}; the scopes are {', '.join(Scope)}", EXIT_USAGE)


def _show(known: Tokens, token: str, as_json: bool) -> None:
    caller = known.caller(token)
    assert caller is not None  # it was made just now
    made: Issued = next(row for row in known.all() if row.id == caller.id)
    if as_json:
        print_json({**made.to_json(), "token": token})
        return
    out.print(token, markup=False, soft_wrap=True)
    out.print(f"id {made.id}, {', '.join(made.scopes)}, {made.stands}; it is not shown again", markup=False)
