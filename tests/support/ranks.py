"""Runs a function on every rank of a group of real gloo processes, and collects the results.

The processes fork from a server that has torch and the library loaded
(:mod:`support.fork_server`), so that a test pays for its own work and not for imports. Their output
is shown if a test fails.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from support.fork_server import process, show
from support.patience import patience

# A rank that waits for another longer than this is stuck.
LIMIT_S = patience(60)


class RankFailed(AssertionError):
    """A rank raised, was killed, or did not end; the text is its traceback."""


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs ``function(*args)`` on every rank; returns the results in the order of the ranks.

    Args:
        world_size: number of processes.
        function: a module-level function; it gets its rank from ``torch.distributed``.
        args: its arguments, which must be picklable.

    Raises:
        RankFailed: if any rank failed; the message has the tracebacks of all that raised.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        children = [
            process(
                _on_rank, rank, world_size, folder, function, args, output=folder / f"{rank}.said"
            )
            for rank in range(world_size)
        ]
        for child in children:
            child.start()
        until = time.monotonic() + LIMIT_S
        try:
            for child in children:
                child.join(max(0.0, until - time.monotonic()))
        finally:
            for child in children:
                if child.is_alive():
                    child.kill()
                    child.join()
        for path in sorted(folder.glob("*.said")):
            show(path)
        wrong = [
            f"rank {r}: exit status {c.exitcode}" for r, c in enumerate(children) if c.exitcode
        ]
        wrong += [path.read_text() for path in sorted(folder.glob("*.error"))]
        if wrong:
            raise RankFailed("\n".join(wrong))
        return [torch.load(folder / f"{r}.pt", weights_only=False) for r in range(world_size)]


def _on_rank(
    rank: int, world_size: int, folder: Path, function: Callable[..., Any], args: Any
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=LIMIT_S / 2),
        )
        torch.save(function(*args), folder / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.error").write_text(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
