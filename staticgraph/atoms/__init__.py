"""Atoms: neighbours that are found at every step, in shapes that do not change.

``Calculator`` needs ASE, and cell lists vesin: ``pip install 'staticgraph[atoms]'``;
``TorchSimModel`` needs torch-sim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from staticgraph.atoms.neighbours import NeighbourList, NeighbourSearch, images_within, neighbours
from staticgraph.atoms.stream import Finished, Stream, stream
from staticgraph.atoms.structures import edges_per_atom, fit_searches, sizes_within, to_data

if TYPE_CHECKING:
    from staticgraph.atoms.calculator import Calculator
    from staticgraph.atoms.torch_sim import TorchSimModel

__all__ = [
    "Calculator",
    "Finished",
    "NeighbourList",
    "NeighbourSearch",
    "Stream",
    "TorchSimModel",
    "edges_per_atom",
    "fit_searches",
    "images_within",
    "neighbours",
    "sizes_within",
    "stream",
    "to_data",
]


def __getattr__(name: str) -> Any:
    """Imports the classes that need ASE and torch-sim at their first use."""
    if name == "Calculator":
        from staticgraph.atoms.calculator import Calculator

        return Calculator
    if name == "TorchSimModel":
        from staticgraph.atoms.torch_sim import TorchSimModel

        return TorchSimModel
    raise AttributeError(f"module 'staticgraph.atoms' has no attribute {name!r}")
