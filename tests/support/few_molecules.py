"""The first molecules of ESOL as a store on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import staticgraph as sg


def few_molecules(
    esol: sg.GraphStore, graphs: int, folders: pytest.TempPathFactory, *, split: bool = False
) -> Path:
    """Saves a new store and returns its folder; with ``split``, four fifths are for training."""
    few = sg.GraphStore.from_pyg(esol[:graphs], name="few")
    path = folders.mktemp("data") / "few"
    if split:
        few = few.with_splits(**sg.datasets.random_split(graphs, 0))
    few.save(path)
    return path
