"""Suggests the word that was meant when one was mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Threshold of difflib's ratio: below it, two words of a dozen letters share little but letters.
ALIKE = 0.6


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Returns the most similar of ``words``, ignoring case; None if none is similar."""
    known = {each.lower(): each for each in words}
    found = difflib.get_close_matches(word.lower(), known, n=1, cutoff=ALIKE)
    return known[found[0]] if found else None


def or_nearest(word: str, words: Iterable[str]) -> str:
    """Returns ``; did you mean 'train'?`` as the end of a message, or an empty string."""
    meant = nearest(word, words)
    return f"; did you mean {meant!r}?" if meant else ""
