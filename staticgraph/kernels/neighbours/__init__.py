"""Any message of neighbours: gathered, computed row by row, and reduced, in one pass."""

from staticgraph.kernels.neighbours.op import neighbours, neighbours_of
from staticgraph.kernels.neighbours.program import Builder, Operand, Program, Result
from staticgraph.kernels.neighbours.reference import neighbours_reference

__all__ = [
    "Builder",
    "Operand",
    "Program",
    "Result",
    "neighbours",
    "neighbours_of",
    "neighbours_reference",
]
