"""What a repository's file may say of nightlies, and what is refused with its repair."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bisection.adapters.catalogue import RepositoryEntry
from bisection.adapters.nightlies import CiIntake, GitHubAccess, JobRule

HOOK = {
    "github": "o/r",
    "workflows": ["nightly"],
    "branches": ["main"],
    "secret_file": "/etc/secret",
    "profile": "p",
}
ACCESS = {"repository": "o/r", "token_file": "/etc/token"}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"webhook": {**HOOK, "profile": None}}, "needs `profile`, or `jobs`"),
        ({"webhook": {**HOOK, "profile": None, "jobs": [{"job": "*"}]}}, "a rule in `jobs` names none"),
        ({"webhook": {**HOOK, "github": "o/r/x"}}, "webhook.github"),
        ({"webhook": HOOK, "github": {**ACCESS, "repository": "o/other"}}, "the same repository"),
        ({"github": {"repository": "o/r"}}, "needs `token_file` or `app`"),
        (
            {"github": {**ACCESS, "app": {"id": "1", "installation": 2, "private_key_file": "k"}}},
            "needs `token_file` or `app`",
        ),
        ({"github": {**ACCESS, "api": "http://github.example/api"}}, "must be https://HOST"),
        ({"github": {**ACCESS, "api": "https://user@github.example"}}, "an address alone"),
        ({"github": {**ACCESS, "api": "file:///etc/passwd"}}, "must be https://HOST"),
        ({"github": {**ACCESS, "log_hosts": ["https://x"]}}, "must be a host"),
        ({"github": {**ACCESS, "log_hosts": ["*"]}}, "must be a host"),
        ({"announce": {"issue": True}}, "announce on GitHub needs `github`"),
        (
            {"announce": {"webhook": {"url": "http://chat.example", "secret_file": "s"}}},
            "must be https://HOST",
        ),
        ({"announce": {"confidence": 0.5}}, "announce.confidence"),
        ({"limits": {"gpu_hours_a_day": 3.0}}, "gpu_hours_a_day needs gpu_hours"),
        ({"ci": {"branches": ["main"], "profile": "p"}}, "ci.secret_file"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_field(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        RepositoryEntry.model_validate({"name": "x", "url": "/mirrors/x", **fields})
    told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in refusal.value.errors())
    assert names in told


def test_a_pattern_knows_the_star_alone() -> None:
    rule = JobRule(job="perf [h100]*", profile="p")
    assert rule.fits("perf [h100] (nightly)")
    assert not rule.fits("perf h")
    assert JobRule(job="*vl*").fits("train", "qwen3-vl-30b")
    assert not JobRule(job="x").fits("", "")


def test_the_first_rule_that_fits_wins_and_takes_the_intakes_profile() -> None:
    rules = [JobRule(job="a*", profile="one"), JobRule(job="*")]
    intake = CiIntake(secret_file="s", branches=("main",), profile="other", jobs=tuple(rules))
    assert [getattr(intake.rule_for(name), "profile", None) for name in ("ab", "b")] == ["one", "other"]


@pytest.mark.parametrize(
    ("address", "followed"),
    [
        ("https://productionresultssa7.blob.core.windows.net/logs/1?sig=x", True),
        ("https://pipelines.actions.githubusercontent.com/x", True),
        ("https://blob.core.windows.net.attacker.example/x", False),
        ("https://attacker.example/?x=.blob.core.windows.net", False),
        ("https://a@productionresultssa7.blob.core.windows.net/", False),
        ("http://productionresultssa7.blob.core.windows.net/", False),
        ("https://169.254.169.254/latest/meta-data", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_a_redirect_is_followed_to_githubs_own_stores_alone(address: str, followed: bool) -> None:
    assert GitHubAccess.model_validate(ACCESS).may_fetch_log_from(address) is followed
