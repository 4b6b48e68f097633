"""Whether a worker host can shut trials in as its profiles ask: tried, with a command that does nothing."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bisection.adapters.catalogue import Profile
from bisection.adapters.isolation import Isolation
from workers.host_checks import Check, Health, guarded
from workers.isolating import refusal


def check_isolations(profiles: Iterable[Profile]) -> list[Check]:
    """One check for each kind of isolation that a profile asks for."""
    wanted = {profile.isolation for profile in profiles if profile.isolation}
    return [
        guarded("isolation", partial(check_isolation, isolation)) for isolation in sorted(wanted, key=str)
    ]


def check_isolation(isolation: Isolation) -> Check:
    """Broken where no trial of such a profile would be started on this host."""
    why = refusal(isolation)
    if why:
        return Check(
            name="isolation",
            health=Health.BROKEN,
            found=why,
            mend="Run the worker as root, or where user namespaces are allowed; or use a container.",
        )
    network = "with the host's network" if isolation.network else "without a network"
    return Check(name="isolation", health=Health.WELL, found=f"trials are shut in by bubblewrap, {network}")
