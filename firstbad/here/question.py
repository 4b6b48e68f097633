"""What somebody asks of a command: when is a commit bad? From options to a profile and a request.

The profile is written into a private catalogue, so that everything after it is as for any other job.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bisection.adapters.launch_adapters import LaunchAdapter
from bisection.adapters.profiles import Limits, Privacy, Profile
from bisection.adapters.training_environments import Environment
from bisection.criteria import Criterion, CriterionKind
from firstbad.here.checkout import Checkout, pin_name
from workers import script_job


@dataclass(frozen=True, kw_only=True)
class Question:
    """A command, and what makes a commit bad. Two equal questions have one answer."""

    command: tuple[str, ...]
    folder: str  #: where it is started, below the top of the tree
    good: str  #: full hashes
    bad: str
    tell_apart: bool = False  #: failures other than the bad end's are skipped
    signature: str = ""
    metric: str | None = None  #: a pattern; the number is what its last match caught
    value_file: str | None = None
    threshold: float | None = None
    lower_is_worse: bool = False
    paths: tuple[str, ...] = ()
    trials: int = 60
    confidence: float = 0.99
    trial_seconds: float = 3600.0

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def criterion(self) -> Criterion:
        if self.metric is None and self.value_file is None:
            return Criterion(kind=CriterionKind.CRASH, signature=self.signature)
        kind = CriterionKind.METRIC_BELOW if self.lower_is_worse else CriterionKind.METRIC_ABOVE
        return Criterion(kind=kind, threshold=self.threshold)

    def profile(self, checkout: Checkout, home: Path) -> Profile:
        """Of the job that the command is. Writes the script that is read by it."""
        script = {
            "command": list(self.command),
            "folder": self.folder,
            "repository": str(checkout.top),
            "tell_apart": self.tell_apart,
            "metric": self.metric,
            "value_file": self.value_file,
        }
        text = json.dumps(script, sort_keys=True)
        # By what is in it: measurements of one command are taken over wherever it is asked about.
        file = home / "scripts" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return Profile(
            name=f"run-{self.digest}",
            repository=checkout.name,
            relevant_paths=self.paths,
            environment=Environment(kind="interpreter", python=sys.executable),
            launch=(
                LaunchAdapter(
                    name="command",
                    command=("{python}", "-I", script_job.__file__, "{script}", "{session}", "{commit}"),
                ),
            ),
            places={"script": str(file), "session": str(session_file(home))},
            by_hand=self.command if self.folder == "." else ("env", "-C", self.folder, *self.command),
            privacy=Privacy(samples="leave"),
            device="host",
            queue=f"run-{self.digest}",
            limits=Limits(trial_seconds=self.trial_seconds),
        )

    def request(self, checkout: Checkout, *, parallel: int, reuse: bool) -> dict[str, Any]:
        return {
            "version": 1,
            "repository": checkout.name,
            "profile": f"run-{self.digest}",
            "good": self.good,
            "bad": self.bad,
            "overrides": {},
            "criterion": self.criterion.to_json(),
            "budget": {"trials": self.trials, "gpu_hours": None, "seconds": None},
            "parallel": parallel,
            "confidence": self.confidence,
            "seed": 0,
            "preview": False,
            "widen": False,
            "reuse": reuse,
            "prove": 0,
        }


def session_file(home: Path) -> Path:
    """The environment of whoever runs the command; there only while they do."""
    return home / "session.json"


def write_catalogue(folder: Path, checkout: Checkout, profile: Profile) -> None:
    """The repository, the submodules that are checked out in it, and the profile."""
    pins = checkout.submodules()
    entries: list[Mapping[str, Any]] = [
        {
            "name": checkout.name,
            "url": str(checkout.common),
            "pins": {path: pin_name(checkout.name, path) for path in pins},
        },
        *({"name": pin_name(checkout.name, path), "url": str(git)} for path, git in pins.items()),
    ]
    for kind, rows in (("repositories", entries), ("profiles", [profile.model_dump(mode="json")])):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for row in rows:
            text = yaml.safe_dump(dict(row), allow_unicode=True, sort_keys=False)
            (folder / kind / f"{row['name']}.yaml").write_text(text, encoding="utf-8")
