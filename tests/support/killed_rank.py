"""``staticgraph`` as a program whose rank 1 is killed in its sixth step, unless restarted.

By then, every rank has passed the checkpoint of the fourth step, since steps wait for each other.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from typing import Any

from staticgraph import cli
from staticgraph.runner.runner import StaticGraphRunner

KILLED_AT = 6


def main() -> int:
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        step, calls = StaticGraphRunner.step, []

        @functools.wraps(step)
        def stepping(runner: StaticGraphRunner, batch: Any) -> Any:
            calls.append(batch.bucket)
            if len(calls) == KILLED_AT:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(runner, batch)

        StaticGraphRunner.step = stepping
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
