"""Packing a stream: best fit in the order of the draw, with a bounded number of open packs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import examples

from staticgraph.packing import pack_stream


def slow_stream(sizes, limits, window, max_graphs):
    """Best fit with bounded space, written as plainly as possible."""
    opened, packs, number = [], [], 0
    for size in sizes:
        fitting = []
        for pack in opened:
            rest = [r - s for r, s in zip(pack["room"], size, strict=True)]
            if min(rest) >= 0 and pack["graphs"] < max_graphs:
                left = sum(r * (1.0 / max(1, b)) for r, b in zip(rest, limits, strict=True))
                fitting.append((left, len(fitting), pack))
        if fitting:
            pack = min(fitting)[2]
        else:
            pack = {"room": list(limits), "graphs": 0, "number": number}
            number += 1
            if len(opened) < window:
                opened.append(pack)
            else:
                full = [p for p in opened if p["graphs"] >= max_graphs]
                closed = (
                    full[0]
                    if full
                    else min(
                        opened,
                        key=lambda p: min(
                            r * (1.0 / max(1, b)) for r, b in zip(p["room"], limits, strict=True)
                        ),
                    )
                )
                opened[opened.index(closed)] = pack
        pack["room"] = [r - s for r, s in zip(pack["room"], size, strict=True)]
        pack["graphs"] += 1
        packs.append(pack["number"])
    return packs


streams = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=0, max_size=60)


@examples(150)
@given(streams, st.integers(1, 70), st.integers(1, 8), st.integers(9, 30), st.integers(9, 30))
def test_stream_is_best_fit_with_so_many_open_packs(sizes, window, max_graphs, nodes, edges):
    got = pack_stream(
        np.array(sizes, dtype=np.int64).reshape(-1, 2),
        [nodes, edges],
        window=window,
        max_graphs=max_graphs,
    )
    assert got.tolist() == slow_stream(sizes, (nodes, edges), window, max_graphs)
