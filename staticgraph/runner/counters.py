"""What the runners of this process compiled, recorded and ran, for tests of one's own.

A step that compiles again, or that silently runs in another way, costs what fixed shapes were to
save, and shows in no result. So the counts are public, and :func:`no_recompile` turns them into an
error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch

from staticgraph.errors import NotStatic
from staticgraph.internals.tracing import counters as torch_counters
from staticgraph.runner.intake import fallbacks_of
from staticgraph.text.how_many import how_many

# The runners of this process.
RUNNERS: WeakSet[Any] = WeakSet()
# How torch's error of the stance that is set here begins.
_DETECTED = "Detected recompile"


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the process began (compilations) or of the runners that there are now.

    Attributes:
        compilations: graphs that ``torch.compile`` compiled, the user's own functions included.
        recordings: CUDA graphs that were recorded.
        replays: how often they ran.
        fallbacks: steps that run in another way than was chosen for them, as a report lists them.
        batches: batches that the runners took.
        padding: the share of padding among their rows of nodes, edges and graphs together.
    """

    compilations: int
    recordings: int
    replays: int
    fallbacks: int
    batches: int
    padding: float


def counters() -> Counters:
    """Returns the counts of this process; waits for no device."""
    recordings = replays = fallbacks = batches = real = rows = 0
    for runner in list(RUNNERS):
        made = runner.steps.recorded
        if made is not None:
            recordings += len(made.counts)
            replays += sum(made.counts.values())
        recordings += sum(count.recordings for _, count in runner.steps.compiled.counts)
        fallbacks += len(fallbacks_of(runner))
        for statistics in runner.statistics:
            batches += statistics.batches
            real += statistics.real_rows
            rows += statistics.batches * statistics.physical_rows
    return Counters(
        torch_counters["stats"]["unique_graphs"],
        recordings,
        replays,
        fallbacks,
        batches,
        1 - real / rows if rows else 0.0,
    )


@contextmanager
def no_recompile() -> Iterator[None]:
    """A ``with`` block in which nothing is compiled or recorded, after a warm-up for instance.

    Raises:
        NotStatic: something was. A function that compiles again raises at once, with the guard that
            failed in torch's words; anything new, when the block ends.
    """
    before = counters()
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            yield
    except RuntimeError as error:
        if not str(error).startswith(_DETECTED):
            raise
        raise NotStatic(f"a function was compiled again inside no_recompile(): {error}") from error
    after = counters()
    compiled = after.compilations - before.compilations
    recorded = after.recordings - before.recordings
    if compiled > 0 or recorded > 0:
        raise NotStatic(
            f"{how_many(max(0, compiled), 'graph')} compiled and "
            f"{how_many(max(0, recorded), 'graph')} recorded inside no_recompile(): call "
            "runner.warmup() before it, with the phases that run inside; runner.report() says "
            "which bucket it was"
        )
