"""The named splits of a store: a dict whose error for a missing key lists the existing splits.

A store made from a list of graphs has no splits, but training scripts usually start by reading
``train``.
"""

from __future__ import annotations

from typing import NoReturn

from staticgraph.sizes.whole_numbers import IntArray


class NoSplit(KeyError):
    """A split that a store does not have; unlike KeyError, shown without quotes."""

    def __str__(self) -> str:
        return str(self.args[0])


class Splits(dict[str, IntArray]):
    """Graph indices by the name of the split."""

    def __missing__(self, name: str) -> NoReturn:
        """Raises an error that lists the existing splits.

        Raises:
            NoSplit: always.
        """
        there = f"its splits are {', '.join(self)}" if self else "it has no splits"
        raise NoSplit(
            f"the store has no split {name!r}, {there}: name some, store = store.with_splits("
            "train=range(900), val=range(900, 1000)), or give positions of graphs as indices="
        )
