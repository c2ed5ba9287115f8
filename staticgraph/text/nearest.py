"""The word that was meant, where one was mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Of difflib's ratio: below, two words of a dozen letters share little but the letters.
ALIKE = 0.6


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The most similar of ``words``, in any case of its letters; None where none is similar."""
    known = {each.lower(): each for each in words}
    found = difflib.get_close_matches(word.lower(), known, n=1, cutoff=ALIKE)
    return known[found[0]] if found else None


def or_nearest(word: str, words: Iterable[str]) -> str:
    """``; did you mean 'train'?`` as the end of a message, or nothing."""
    meant = nearest(word, words)
    return f"; did you mean {meant!r}?" if meant else ""
