"""The named splits of a store: a dict that says which there are where another is asked for.

A store made of a list of graphs has none, and the first line of a training asks for ``train``.
"""

from __future__ import annotations

from typing import NoReturn

from staticgraph.sizes.whole_numbers import IntArray


class NoSplit(KeyError):
    """A split that a store does not have; its message is shown as it is, without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


class Splits(dict[str, IntArray]):
    """Positions of graphs by name."""

    def __missing__(self, name: str) -> NoReturn:
        """Says which splits there are.

        Raises:
            NoSplit: always.
        """
        there = f"its splits are {', '.join(self)}" if self else "it has no splits"
        raise NoSplit(
            f"the store has no split {name!r}, {there}: name some, store = store.with_splits("
            "train=range(900), val=range(900, 1000)), or give positions of graphs as indices="
        )
