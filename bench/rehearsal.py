"""Stand-ins for a GPU, so that every part of :mod:`bench.gpu` can be rehearsed without one.

``--tiny`` sets ``STATICGRAPH_REHEARSAL``. Then ``cuda-graph`` records in the arena of the tests,
and graphs traced by torch.compile run as traced. Both are slower than what they replace and say
nothing about its time: the output of such a run is labelled, and :mod:`bench.fill_figures` refuses
it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

REHEARSAL = os.environ.get("STATICGRAPH_REHEARSAL") == "1"
LABEL = "REHEARSAL, NO FIGURES: " if REHEARSAL else ""

if REHEARSAL:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.arena import ArenaRecorder
    from support.places import AsTraced

    if torch.cuda.is_available():
        sys.exit("a rehearsal is for a machine without a GPU: leave --tiny out")
    torch._TorchCompileInductorWrapper = AsTraced  # pyright: ignore


def recorder(mode: str) -> Any:
    """Returns the recorder for ``Recording``: None, or the stand-in for ``cuda-graph``."""
    return ArenaRecorder if REHEARSAL and mode == "cuda-graph" else None
