"""Finding the first size that fits: a tree of minima over a sorted list of sizes.

The problem: packing repeatedly needs the first type, in order of size, that still has graphs left
and fits the room in every component. A scan costs as many steps as there are types (ogbg-ppa has
35,981). The idea: a binary tree whose nodes hold the minimum of each component below them; a
subtree whose minimum exceeds the room in one component is skipped as a whole. Types without graphs
hold :data:`GONE` and are never found.

The tree is an array ``[2 * leaves, C]``: the root is row 1, the children of ``p`` are ``2p`` and
``2p + 1``, the type ``t`` is row ``leaves + t``.
"""

from __future__ import annotations

import numpy as np

from staticgraph.jit import part
from staticgraph.sizes.whole_numbers import IntArray

GONE = np.iinfo(np.int64).max


@part
def build(sizes: IntArray, counts: IntArray) -> IntArray:
    """The tree over ``sizes`` ``[T, C]``, without the types whose count is 0."""
    leaves = 1
    while leaves < len(sizes):
        leaves *= 2
    tree = np.full((2 * leaves, sizes.shape[1]), GONE, np.int64)
    for t in range(len(sizes)):
        if counts[t] > 0:
            for c in range(sizes.shape[1]):
                tree[leaves + t, c] = sizes[t, c]
    for p in range(leaves - 1, 0, -1):
        _refresh(tree, p)
    return tree


@part
def _refresh(tree: IntArray, p: int) -> None:
    """Recomputes a node as the minimum of its two children."""
    for c in range(tree.shape[1]):
        tree[p, c] = min(tree[2 * p, c], tree[2 * p + 1, c])


@part
def remove(tree: IntArray, t: int) -> None:
    """Removes type ``t``, so that it is no longer found."""
    p = len(tree) // 2 + t
    tree[p] = GONE
    while p > 1:
        p //= 2
        _refresh(tree, p)


@part
def restore(tree: IntArray, t: int, size: IntArray) -> None:
    """Restores type ``t`` with this size ``[C]``, so that it is found again."""
    p = len(tree) // 2 + t
    for c in range(len(size)):
        tree[p, c] = size[c]
    while p > 1:
        p //= 2
        _refresh(tree, p)


@part
def first(tree: IntArray, room: IntArray, start: int) -> int:
    """The first type from ``start`` on that fits ``room`` ``[C]`` in every component, or -1."""
    leaves = len(tree) // 2
    if start >= leaves:
        return -1
    p = leaves + start
    while True:
        fits = True
        for c in range(tree.shape[1]):
            if tree[p, c] > room[c]:
                fits = False
                break
        if fits:
            if p >= leaves:
                return p - leaves
            p *= 2
            continue
        while p & 1:
            p >>= 1
        if p == 0:
            return -1
        p += 1
