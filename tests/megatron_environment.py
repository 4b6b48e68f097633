"""Makes the environment with the real Megatron Bridge: python -m tests.megatron_environment HOME

Prints the path of its interpreter. It is made by firstbad's own builder from the
demo's lock, so that the demo and the tests share one environment below HOME.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bisection.adapters.catalogue import Environment
from firstbad.demo import DEFAULT_SCENARIO, plan
from firstbad.demo.profile import OVERLAY, PIP_FIRST
from workers.environments import Environments


def main() -> None:
    root = Path(sys.argv[1])
    tree = plan(DEFAULT_SCENARIO, 0).trees()[0]
    pins = [line for line in tree["requirements.lock"].splitlines() if not line.startswith(OVERLAY)]
    wanted = Environment(kind="venv", lock="requirements.lock", pip_first=PIP_FIRST)
    said: list[str] = []

    def say(text: str) -> None:
        if text not in said:
            said.append(text)
            sys.stderr.write(f"firstbad tests: {text}\n")

    prepared = Environments(root).prepare(wanted, "\n".join(pins) + "\n", {}, progress=say)
    sys.stdout.write(f"{prepared.python}\n")


if __name__ == "__main__":
    main()
