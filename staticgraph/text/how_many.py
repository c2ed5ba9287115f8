"""A number with its noun: ``1 batch``, ``1,128 graphs``.

One is the number that a template gets wrong, and the first that a newcomer meets: one thread, one
bucket, one graph too many. So no sentence of the library writes a plural behind a number itself.
"""

from __future__ import annotations

from typing import SupportsInt

_HISSING = ("s", "x", "ch", "sh")


def how_many(count: SupportsInt, noun: str) -> str:
    """``how_many(1, "batch")`` is ``1 batch``, ``how_many(1128, "graph")`` is ``1,128 graphs``.

    Args:
        count: a whole number, of Python, NumPy or torch.
        noun: in the singular; words before the last stay as they are.
    """
    number = int(count)
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def how_many_of(count: SupportsInt, names: str) -> str:
    """The same with the name of a component, which is a plural (``1 node``, ``2 nodes``) or a word
    of the user's: ``1 atom``, ``2 atom``."""
    number = int(count)
    return f"{number:,} {names[:-1] if number == 1 and names.endswith('s') else names}"


def plural(noun: str) -> str:
    """The plural of a regular noun: graphs, batches, entries."""
    if noun.endswith(_HISSING):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"
