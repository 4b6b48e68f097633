"""The demo: a repository with a planted regression, and whether firstbad found it.

It plans, writes and registers; it bisects nothing. The command line bisects the
repository through the REST API like any user's.
"""

from firstbad.demo.answer import check
from firstbad.demo.photographs import wheels
from firstbad.demo.profile import write_profile
from firstbad.demo.repository import Nightly, generate
from firstbad.demo.scenarios import DEFAULT_SCENARIO, SCENARIOS, DemoPlan, plan

__all__ = [
    "DEFAULT_SCENARIO",
    "SCENARIOS",
    "DemoPlan",
    "Nightly",
    "check",
    "generate",
    "plan",
    "wheels",
    "write_profile",
]
