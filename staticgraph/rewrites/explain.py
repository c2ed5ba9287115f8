"""What was rewritten in a model, and what prevented it elsewhere, by the model's own lines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from staticgraph.rewrites.captured_graph.captured import Captured, Rewritten
from staticgraph.text.table import as_preformatted, table


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of rewriting one step.

    Attributes:
        done: places that run by an operator of this library.
        missed: places that nearly do, each with the single reason why not.
    """

    done: tuple[Rewritten, ...]
    missed: tuple[Rewritten, ...]

    @classmethod
    def of(cls, captured: Iterable[Captured]) -> Explanation:
        """Collects the places of one graph or several, each place once."""
        done: dict[Rewritten, None] = {}
        missed: dict[Rewritten, None] = {}
        for graph in captured:
            done.update(dict.fromkeys(graph.done))
            missed.update(dict.fromkeys(graph.missed.values()))
        return cls(tuple(done), tuple(missed))

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        rows = [
            (
                r.layer or "the model",
                r.line,
                r.rewrite,
                f"no: {r.reason}" if r.reason else r.computes,
            )
            for r in (*self.done, *self.missed)
        ]
        if not rows:
            return "nothing was rewritten, and nothing was near it"
        return table(("layer", "line", "rewrite", "what it computes, or why it stays"), rows)
