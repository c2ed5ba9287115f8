"""Shares as people read them."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """A share in hundredths, to a tenth; ``-`` for none."""
    return "-" if share is None else f"{100 * share:.1f}%"
