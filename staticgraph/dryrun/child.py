"""The process with an emulated device: answers requests of the process that started it.

It is started by :mod:`.start_child` as ``python -m staticgraph.dryrun.child CONNECTION TARGET``;
each side unpickles what the other sends. The guard is loaded before torch, so no module that
imports torch may be imported above :func:`main`.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from staticgraph.errors import DryRunBroken, DryRunUnavailable
from staticgraph.text.progress import heard


def main(argv: list[str]) -> None:
    """Patches this process for a target and answers until the connection ends."""
    gc.disable()  # during the imports; a runner's warm-up collects rarely by itself
    warnings.filterwarnings("ignore")
    from staticgraph.dryrun import device_guard
    from staticgraph.dryrun.targets import target_of

    connection, target = Connection(int(argv[0])), target_of(argv[1])

    def start() -> None:
        """Patches torch, and imports what the answers need."""
        loaded = device_guard.load()  # before the next line, which imports torch
        from staticgraph.dryrun.patches import install

        install(loaded, target)
        from staticgraph.dryrun import measure, selftest  # noqa: F401

    def answer(body: bytes) -> Any:
        """The report that a request asks for, or the stages of the self-test."""
        import torch

        from staticgraph.dryrun import measure, selftest

        request = torch.load(io.BytesIO(body), weights_only=False, map_location="cpu")
        return selftest.tried() if request is None else measure.measure(target, **request)

    reply = answered(start)
    gc.freeze()
    gc.enable()
    while True:
        connection.send_bytes(reply)
        try:
            reply = answered(answer, connection.recv_bytes())
        except EOFError:
            return


def answered(work: Callable[..., Any], *args: Any) -> bytes:
    """What the work returned, or the error, pickled together with the messages printed meanwhile.

    The parent process shows the messages, such as how labels were guessed.
    """
    with heard() as messages:
        try:
            answer = work(*args)
        except Exception as error:
            answer = _failure(error)
    return pickle.dumps((messages, answer))


def _failure(error: Exception) -> Exception:
    """The error that the parent raises; one of another kind may be known to this process alone."""
    words, kind = str(error) or type(error).__name__, type(error)
    if kind in (ValueError, DryRunBroken, DryRunUnavailable):
        return kind(words)
    trace = traceback.format_exc()
    return RuntimeError(f"the dry run failed: {kind.__name__}: {words}\n{trace}")


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(0)  # nothing needs closing, and tearing down a patched torch takes seconds
