"""The capacities that one sum of counts applies to, where steps run different operations at others.

A layer that keeps ``k`` rows per graph copies where graphs are larger and does not where they are
smaller, and its block is ``max(M, k)`` places wide: constant on one side, a sum of counts on the
other, with a jump between. Attention runs once over one block, and once for each of several. So the
bytes of a step are piecewise: an exact sum on either side, which no single sum approximates. Pure
numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from staticgraph.sizes.attention import attention_path
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many


class Regime(NamedTuple):
    """A set of capacities, by their largest graph and their blocks of attention.

    The largest graph has more than ``above`` and at most ``upto`` nodes (any number where None),
    and the blocks of attention by size are ``several`` or one (either where None).
    """

    above: int = 0
    upto: int | None = None
    several: bool | None = None

    def holds(self, capacity: Capacity) -> bool:
        """Whether a capacity belongs to this regime."""
        largest = capacity.max_graph_nodes
        if largest <= self.above or (self.upto is not None and largest > self.upto):
            return False
        return self.several is None or self.several == has_several_blocks(capacity)

    def __str__(self) -> str:
        parts = (
            [f"more than {how_many(self.above, 'node')} in the largest graph"] if self.above else []
        )
        parts += (
            []
            if self.upto is None
            else [f"at most {how_many(self.upto, 'node')} in the largest graph"]
        )
        if self.several is not None:
            parts.append("several blocks by size" if self.several else "one block")
        return ", ".join(parts) or "any capacity"


def has_several_blocks(capacity: Capacity) -> bool:
    """Whether attention in this bucket is cut into blocks by size."""
    return len(attention_path(capacity).blocks) > 1
