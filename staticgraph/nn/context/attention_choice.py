"""Which path attention takes in a model: the one that was asked for, or the fastest, or cheapest.

A user may ask for a path, for all buckets. Otherwise what was fastest on the device is taken where
it was timed (:mod:`staticgraph.runner.timing.attention_trial`), bucket by bucket, and elsewhere
what arithmetic finds the cheapest (:mod:`staticgraph.sizes.attention`).
"""

from __future__ import annotations

from collections.abc import Hashable

from staticgraph.sizes.attention import PATHS, AttentionPath, AttentionSetting, attention_path
from staticgraph.sizes.capacity import Capacity


class AttentionChoice:
    """The choice of one model.

    Attributes:
        asked: a path, or ``auto``.
    """

    __slots__ = ("_timed", "asked")

    def __init__(self) -> None:
        self.asked: str = "auto"
        # What was fastest on the device, by what tells a bucket's attention from another's.
        self._timed: dict[Hashable, str] = {}

    def ask(self, path: str) -> None:
        """Takes a path in the steps to come.

        Raises:
            ValueError: no such path.
        """
        if path not in PATHS:
            raise ValueError(f"attention={path!r}; choose one of {', '.join(PATHS)}")
        self.asked = path

    def path_in(self, capacity: Capacity, setting: AttentionSetting | None) -> AttentionPath:
        """How attention goes in a bucket, of a layer in this setting.

        Raises:
            NotStatic: a path was asked for that is impossible there.
        """
        timed = ""
        if setting is not None and self._timed:
            timed = self._timed.get(_key(capacity, setting.training), "")
        return attention_path(capacity, self.asked, setting, timed)

    def is_timed(self, capacity: Capacity, training: bool) -> bool:
        """Whether a bucket has a fastest path."""
        return _key(capacity, training) in self._timed

    def take(self, capacity: Capacity, training: bool, path: str) -> None:
        """Lets a path be a bucket's fastest from now on."""
        self._timed[_key(capacity, training)] = path

    def forget(self, capacity: Capacity, training: bool) -> None:
        """Takes back :meth:`take`."""
        del self._timed[_key(capacity, training)]


def _key(capacity: Capacity, training: bool) -> Hashable:
    """What a time of attention belongs to: the numbers of a bucket, and the mode."""
    numbers = capacity.nodes, capacity.graphs, capacity.max_graph_nodes
    return (*numbers, capacity.order_statistics, training)
