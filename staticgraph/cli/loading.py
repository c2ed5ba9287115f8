"""What a command says before it imports torch and PyG, which takes seconds and says nothing.

What can be refused without them is refused first: options that do not go together, a file that is
not there.
"""

from __future__ import annotations

import os
import sys

from staticgraph.datasets import specs
from staticgraph.text.progress import say


def say_loading() -> None:
    """One line to stderr, of a job's first process alone; none where torch and PyG are loaded."""
    if "torch_geometric" not in sys.modules and os.environ.get("RANK", "0") == "0":
        say("loading torch and PyG")


def look_for(data: str, target: str | None = None, *, model: bool = True) -> None:
    """Refuses a data set that is not there, then says that torch is loaded.

    Args:
        data: what ``--data`` names.
        target: what ``--target`` names.
        model: whether a model is run; else torch is loaded for data of PyG's own alone.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as :func:`staticgraph.datasets.open`.
    """
    specs.check(data, target=target)
    if model or specs.by_pyg(data):
        say_loading()
