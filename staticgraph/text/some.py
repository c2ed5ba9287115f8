"""Shortens a list of words to its first few, for a single line."""

from __future__ import annotations

from collections.abc import Iterable

# Words that are named before the others are counted.
NAMED = 4


def some(words: Iterable[str]) -> str:
    """Returns ``a, b, c, d and 3 more``."""
    words = list(words)
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")
