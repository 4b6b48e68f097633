"""From a requester's word (a branch, a tag, a hash, with git's ^ and ~) to one full hash.

The only place where a user's word meets a git command line. A word with several
meanings is refused here, not chosen between. Nothing is fetched, and no range is read.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from bisection.adapters.git_process import GitError, MirrorError, run_git
from bisection.commits import check_hash

_LONGEST_REF = 250
#: A revision up to what git's grammar may add to a name: ^, ~ and @{...}.
_FIRST_WORD = re.compile(r"(?:(?![\^~]|@\{).)+")
_FULL_HASH = re.compile(r"[0-9a-fA-F]{40}")
_SHORT_HASH = re.compile(r"[0-9a-fA-F]{7,39}")


class UnknownRef(MirrorError):
    """No commit of that name is in the repository."""

    problem = "unknown-ref"


class AmbiguousRef(MirrorError):
    """The word names several commits."""

    problem = "ambiguous-ref"


def resolve_ref(folder: Path, url: str, ref: str) -> str:
    """The full hash of the commit that ``ref`` names in the bare repository ``folder``.

    Raises UnknownRef, and AmbiguousRef where git would choose silently (a tag before a
    branch, a name before a hash) between commits that differ. ``url`` is for the message.
    """
    if not ref or len(ref) > _LONGEST_REF or not ref.isprintable():
        raise UnknownRef(f"{ref[:60]!r} is not the name of a commit: give a branch, a tag or a hash")
    start = _FIRST_WORD.match(ref)
    word = start[0] if start else ""
    named = {name: _commit(folder, name + ref[len(word) :]) for name in _meanings(folder, word)}
    found = {name: commit for name, commit in named.items() if commit}
    if len(set(found.values())) > 1:
        meant = "; ".join(f"{name} is {commit[:10]}" for name, commit in found.items())
        raise AmbiguousRef(f"{word!r} names several commits: {meant}. Give one of these names instead")
    commit = next(iter(found.values()), None) or _commit(folder, ref)
    if commit is None:
        raise UnknownRef(_unknown(folder, url, ref))
    return commit


def _commit(folder: Path, name: str) -> str | None:
    """What git makes of a name; a user's word reaches a command line only here and in `_hashes`."""
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    try:
        return check_hash(run_git(folder, *words).decode().strip())
    except GitError as error:
        if error.shows_damage:
            raise
    except ValueError:
        pass
    return None


def _meanings(folder: Path, word: str) -> tuple[str, ...]:
    """Every unmistakable name that a word could stand for, whether or not there is a commit of it."""
    if word in ("", "HEAD") or word.startswith("refs/") or _FULL_HASH.fullmatch(word):
        return ()  # git itself takes these as they are
    places = ("refs/", "refs/heads/", "refs/tags/") if "/" in word else ("refs/heads/", "refs/tags/")
    return (*(place + word for place in places), *_hashes(folder, word))


def _hashes(folder: Path, word: str) -> tuple[str, ...]:
    """The commits whose hash starts so. Fewer than 7 digits are no hash beside a name: a tag 2024."""
    if not _SHORT_HASH.fullmatch(word):
        return ()
    objects = run_git(folder, "rev-parse", f"--disambiguate={word.lower()}")
    rows = run_git(folder, "cat-file", "--batch-check=%(objecttype) %(objectname)", stdin=objects).decode()
    return tuple(row.split()[1] for row in rows.splitlines() if row.startswith("commit "))


def _unknown(folder: Path, url: str, ref: str) -> str:
    names = run_git(folder, "for-each-ref", "--format=%(refname:strip=2)", "refs/heads", "refs/tags")
    known = names.decode(errors="replace").split("\n")[:-1]
    near = difflib.get_close_matches(ref, known, n=3)
    hint = f"near names: {', '.join(near)}" if near else "give a branch, a tag or a full hash that was pushed"
    return f"no commit {ref!r} in {url}; {hint}"
