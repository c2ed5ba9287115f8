"""Groups the graphs of a batch into spans: of the same request, and of the same arrays."""

from __future__ import annotations

from staticgraph.serving.bodies.flat_graphs import FlatGraphs, FlatSpan
from staticgraph.serving.engine.concatenation import StoreSpan
from staticgraph.serving.engine.outputs import Output, cut, listed
from staticgraph.serving.engine.request import Piece, Request
from staticgraph.store.graph_columns import GraphColumns


def runs_of(pieces: list[Piece]) -> list[tuple[Request, int, int, int]]:
    """Runs of consecutive graphs of one request: the request, the position of the first graph in it
    and in the batch, and the number of graphs."""
    runs: list[tuple[Request, int, int, int]] = []
    for place, (request, graph) in enumerate(pieces):
        if runs:
            last, first, begin, count = runs[-1]
            if last is request and first + count == graph:
                runs[-1] = (request, first, begin, count + 1)
                continue
        runs.append((request, graph, place, 1))
    return runs


def handed_out(pieces: list[Piece], out: Output) -> list[Request]:
    """Gives each request its part of a batch's output; returns the requests that are complete."""
    runs = runs_of(pieces)
    lists = any(request.wants_list(count) for request, _, _, count in runs) and listed(out)
    found = []
    for request, graph, place, count in runs:
        form = lists if lists and request.listed else out
        if request.take(graph, count, cut(form, place, place + count)):
            found.append(request)
    return found


def spans_of(pieces: list[Piece]) -> list[StoreSpan | FlatSpan]:
    """Spans of graphs that are consecutive in the same arrays, regardless of their requests."""
    found: list[tuple[GraphColumns | FlatGraphs, int, int]] = []
    for request, graph in pieces:
        here = request.first + graph
        if found and found[-1][0] is request.store and found[-1][2] == here:
            found[-1] = (request.store, found[-1][1], here + 1)
        else:
            found.append((request.store, here, here + 1))
    return [
        FlatSpan(store, first, last)
        if isinstance(store, FlatGraphs)
        else StoreSpan(store, first, last)
        for store, first, last in found
    ]
