"""Which path attention takes in a model: the one requested, the fastest measured, or the cheapest.

A user may request a path for all buckets. Otherwise a bucket uses the path that was fastest on the
device, if it was timed (:mod:`staticgraph.runner.timing.attention_trial`), and else the one that is
cheapest by arithmetic (:mod:`staticgraph.sizes.attention`).
"""

from __future__ import annotations

from collections.abc import Hashable

from staticgraph.sizes.attention import PATHS, AttentionPath, AttentionSetting, attention_path
from staticgraph.sizes.capacity import Capacity


def check_path(path: str) -> None:
    """Checks the name of an attention path.

    Raises:
        ValueError: unknown path.
    """
    if path not in PATHS:
        raise ValueError(f"attention={path!r}; choose one of {', '.join(PATHS)}")


class AttentionChoice:
    """The attention path of one model.

    Attributes:
        asked: the requested path, or ``auto``.
    """

    __slots__ = ("_timed", "asked")

    def __init__(self) -> None:
        self.asked: str = "auto"
        # The path that was fastest on the device, by the key of a bucket and mode.
        self._timed: dict[Hashable, str] = {}

    def ask(self, path: str) -> None:
        """Requests a path for all following steps.

        Raises:
            ValueError: unknown path.
        """
        check_path(path)
        self.asked = path

    def path_in(self, capacity: Capacity, setting: AttentionSetting | None) -> AttentionPath:
        """Returns the path of attention in a bucket, for a layer in this setting.

        Raises:
            NotStatic: the requested path is impossible there.
        """
        timed = ""
        if setting is not None and self._timed:
            timed = self._timed.get(_key(capacity, setting.training), "")
        return attention_path(capacity, self.asked, setting, timed)

    def is_timed(self, capacity: Capacity, training: bool) -> bool:
        """Whether a fastest path has been recorded for a bucket."""
        return _key(capacity, training) in self._timed

    def take(self, capacity: Capacity, training: bool, path: str) -> None:
        """Records a path as the fastest for a bucket."""
        self._timed[_key(capacity, training)] = path

    def forget(self, capacity: Capacity, training: bool) -> None:
        """Undoes :meth:`take`."""
        del self._timed[_key(capacity, training)]


def _key(capacity: Capacity, training: bool) -> Hashable:
    """What a timing of attention is valid for: the numbers of a bucket, and the mode."""
    numbers = capacity.nodes, capacity.graphs, capacity.max_graph_nodes
    return (*numbers, capacity.order_statistics, training)
