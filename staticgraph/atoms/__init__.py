"""Atoms: neighbours that are found at every step, in shapes that do not change."""

from staticgraph.atoms.calculator import Calculator
from staticgraph.atoms.neighbours import NeighbourList, Neighbours, images_within, neighbours
from staticgraph.atoms.stream import Finished, Stream, stream
from staticgraph.atoms.structures import edges_per_atom, sizes_within, to_data

__all__ = [
    "Calculator",
    "Finished",
    "NeighbourList",
    "Neighbours",
    "Stream",
    "edges_per_atom",
    "images_within",
    "neighbours",
    "sizes_within",
    "stream",
    "to_data",
]
