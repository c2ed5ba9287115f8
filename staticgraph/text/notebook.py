"""How a report shows itself as the last line of a notebook's cell.

A notebook asks an object for HTML first. Without it, it shows the representation of a dataclass:
one line of every field, a page long. The report's own text is what a reader wants.
"""

from __future__ import annotations

from html import escape

__all__ = ["as_preformatted"]


def as_preformatted(shown: object) -> str:
    """The text of an object as HTML of fixed width: ``_repr_html_ = as_preformatted``."""
    return f"<pre>{escape(str(shown))}</pre>"
