"""Atoms: neighbours that are found at every step, in shapes that do not change."""

from staticgraph.atoms.neighbours import NeighbourList, Neighbours, images_within, neighbours

__all__ = ["NeighbourList", "Neighbours", "images_within", "neighbours"]
