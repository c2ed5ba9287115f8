"""A data set as flat columns: the store itself, its files, and the way from PyG's ``Data``."""

from staticgraph.store.graph_store import Array, GraphStore

__all__ = ["Array", "GraphStore"]
