"""The parts of a model that are rewritten to operators of this library (``staticgraph check``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from staticgraph.text.how_many import how_many

if TYPE_CHECKING:
    from torch.nn import Module

    from staticgraph.plans.plan import BucketPlan
    from staticgraph.rewrites.captured_graph.captured import Rewritten
    from staticgraph.store.graph_store import GraphStore


class RewritesReport:
    """The places of a model that are rewritten, by the model's lines, and the near misses.

    Attributes:
        done, missed: as in :class:`staticgraph.rewrites.explain.Explanation`.
        note: why there is nothing to report; ``""`` otherwise.
    """

    done: tuple[Rewritten, ...]
    missed: tuple[Rewritten, ...]
    note: str

    def __init__(
        self, done: Sequence[Rewritten] = (), missed: Sequence[Rewritten] = (), note: str = ""
    ) -> None:
        self.done, self.missed, self.note = tuple(done), tuple(missed), note

    @classmethod
    def of(cls, model: Module, plan: BucketPlan, store: GraphStore) -> RewritesReport:
        """Captures the model and finds its rewrites; an error of the model becomes the note."""
        from staticgraph.checking.explain import explain

        try:
            found = explain(model, plan, store)
        except Exception as error:  # the check has reported the obstacles
            first = str(error).strip().splitlines() or [""]
            return cls(note=f"the model cannot be captured ({type(error).__name__}: {first[0]})")
        return cls(found.done, found.missed)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {
            "done": [self._plain(place) for place in self.done],
            "missed": [{**self._plain(place), "reason": place.reason} for place in self.missed],
            "note": self.note,
        }

    @staticmethod
    def _plain(place: Rewritten) -> dict[str, Any]:
        return {"rewrite": place.rewrite, "line": place.line, "layer": place.layer}

    def __str__(self) -> str:
        if self.note:
            return f"rewrites: {self.note}"
        if not (self.done or self.missed):
            return "rewrites: nothing in this model is near an operator of this library"
        lines = [
            "rewritten to operators of this library, mode fused: "
            f"{how_many(len(self.done), 'place')}"
        ]
        lines += _by_line(self.done)
        if self.missed:
            lines.append(
                f"near a rewrite, and what stood in the way: {how_many(len(self.missed), 'place')}"
            )
            lines += _by_line(self.missed)
        return "\n".join(lines)


def _by_line(places: Sequence[Rewritten]) -> list[str]:
    """One line of text per line of the model's code and rewrite, with the layers it applies to."""
    by_line: dict[str, dict[str, list[str]]] = {}
    for place in places:
        told = place.rewrite + ("" if place.reason is None else f": {place.reason}")
        by_line.setdefault(place.line, {}).setdefault(told, []).append(place.layer)
    width = max(map(len, by_line))
    lines = []
    for line, told in by_line.items():
        for number, (what, layers) in enumerate(told.items()):
            named = list(dict.fromkeys(layer for layer in layers if layer))
            shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
            where = f" ({shown})" if shown else ""
            lines.append(f"  {line if number == 0 else '':<{width}}  {what}{where}")
    return lines
