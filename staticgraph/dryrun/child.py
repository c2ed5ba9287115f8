"""The process with an emulated device: answers requests, one line of JSON each.

It is started by :mod:`.ask` as ``python -m staticgraph.dryrun.child TARGET``. Requests come on
standard input, answers go to standard output; all other output goes to standard error. The guard is
loaded before torch, so no module that imports torch may be imported above :func:`main`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

# Tracing creates millions of small objects that stay alive: collecting garbage every 700 objects
# takes a seventh of the start and a twentieth of a request (torch 2.13, 2 cores).
COLLECTED_EVERY = (50_000, 20, 20)


def main(argv: list[str]) -> int:
    """Patches this process for a target and answers until the input ends."""
    gc.disable()  # during the imports
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from staticgraph.dryrun import guard
    from staticgraph.dryrun.targets import target_of

    def answer(value: dict[str, Any]) -> None:
        """Writes one line of JSON and flushes it."""
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    target = target_of(argv[0])
    warnings.filterwarnings("ignore")
    try:
        loaded = guard.load()  # before the next lines, which import torch
        from staticgraph.dryrun.stubs_inductor import install

        points = install(loaded, target, argv[1] if len(argv) > 1 else None)
        from staticgraph.dryrun import measure, stages
    except Exception as error:
        answer(_failure(error))
        return 1
    gc.freeze()
    gc.set_threshold(*COLLECTED_EVERY)
    gc.enable()
    answer({"ready": len(points.points)})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request.get("selftest"):
                answer({"stages": stages.tried(points)})
            else:
                answer(reported(measure.measure, request, target))
        except Exception as error:
            answer(_failure(error))
    return 0


def reported(measure: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """A report, or the error, together with the messages printed meanwhile.

    The parent process shows the messages, such as how labels were guessed.
    """
    from staticgraph.text.progress import heard

    with heard() as said:
        try:
            return {"report": measure(*args).to_dict(), "said": said}
        except Exception as error:
            return _failure(error) | {"said": said}


def _failure(error: Exception) -> dict[str, Any]:
    return {
        "error": str(error) or type(error).__name__,
        "kind": type(error).__name__,
        "trace": traceback.format_exc(),
    }


if __name__ == "__main__":
    _status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(_status)  # nothing needs closing, and tearing down a patched torch takes seconds
