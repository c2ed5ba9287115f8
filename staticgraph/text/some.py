"""The first few of many words, for one line."""

from __future__ import annotations

from collections.abc import Iterable

# Words that a sentence names before it counts the others.
NAMED = 4


def some(words: Iterable[str]) -> str:
    """``a, b, c, d and 3 more``."""
    words = list(words)
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")
