"""Formats a number with its noun: ``1 batch``, ``1,128 graphs``.

A hard-coded plural is wrong for one, which is the first count that a newcomer meets: one thread,
one bucket, one graph too many. So messages of this library take plurals from here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import SupportsInt

# Threshold of difflib's ratio: below it, two words of a dozen letters share little but letters.
ALIKE = 0.6


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Returns the most similar of ``words``, ignoring case; None if none is similar."""
    by_lower = {each.lower(): each for each in words}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=ALIKE)
    return by_lower[matches[0]] if matches else None


def or_nearest(word: str, words: Iterable[str]) -> str:
    """Returns ``; did you mean 'train'?`` as the end of a message, or an empty string."""
    meant = nearest(word, words)
    return f"; did you mean {meant!r}?" if meant else ""


# Words that are named before the others are counted.
NAMED = 4


def some(words: Iterable[str]) -> str:
    """Returns ``a, b, c, d and 3 more``."""
    words = list(words)
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")


_HISSING = ("s", "x", "ch", "sh")


def how_many(count: SupportsInt, noun: str) -> str:
    """Returns ``1 batch`` for ``how_many(1, "batch")``, ``1,128 graphs`` for
    ``how_many(1128, "graph")``.

    Args:
        count: an integer of Python, NumPy or torch.
        noun: singular; words before the last are kept as they are.
    """
    number = int(count)
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def how_many_of(count: SupportsInt, names: str) -> str:
    """Formats a count with the name of a component.

    The name is a plural (``1 node``, ``2 nodes``) or the user's own word, which is kept
    (``1 atom``, ``2 atom``).
    """
    number = int(count)
    return f"{number:,} {names[:-1] if number == 1 and names.endswith('s') else names}"


def plural(noun: str) -> str:
    """Returns the plural of a regular noun: graphs, batches, entries."""
    if noun.endswith(_HISSING):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"
