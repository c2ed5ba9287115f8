"""Formats fractions as percentages."""

from __future__ import annotations


def percent(share: float | None) -> str:
    """Formats a fraction as a percentage with one decimal; ``-`` for None."""
    return "-" if share is None else f"{100 * share:.1f}%"
