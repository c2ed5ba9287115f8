"""Displays a report as the last line of a notebook cell.

A notebook asks an object for HTML first. Without it, it shows the dataclass representation: one
line with every field, a page long. The report's own text is more readable.
"""

from __future__ import annotations

from html import escape

__all__ = ["as_preformatted"]


def as_preformatted(shown: object) -> str:
    """Returns the text of an object as preformatted HTML; use as
    ``_repr_html_ = as_preformatted``."""
    return f"<pre>{escape(str(shown))}</pre>"
