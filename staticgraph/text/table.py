"""Plain aligned text tables.

If a terminal is too narrow, the table continues below with its first column repeated: lines that
the terminal wraps anywhere are unreadable. In a file or a pipe it stays whole.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["as_preformatted"]


def as_preformatted(shown: object) -> str:
    """Returns the text of an object as preformatted HTML; use as
    ``_repr_html_ = as_preformatted``."""
    return f"<pre>{escape(str(shown))}</pre>"


def percent(share: float | None) -> str:
    """Formats a fraction as a percentage with one decimal; ``-`` for None."""
    return "-" if share is None else f"{100 * share:.1f}%"


GAP = "  "


def table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], width: int | None = None
) -> str:
    """Formats rows under headers, numbers right-aligned, with a rule in between.

    Args:
        headers: one per column.
        rows: one cell per column.
        width: maximum width in characters; None for that of the terminal that stdout is, unlimited
            if it is not a terminal.
    """
    cells = [[str(value) for value in row] for row in rows]
    widths = [
        max(len(header), *(len(row[i]) for row in cells), 0) if cells else len(header)
        for i, header in enumerate(headers)
    ]
    right = [all(_numeric(row[i]) for row in cells) and bool(cells) for i in range(len(headers))]

    def line(values: Sequence[str], columns: Sequence[int]) -> str:
        """Formats a line of some columns, numbers right-aligned."""
        placed = (
            values[i].rjust(widths[i]) if right[i] else values[i].ljust(widths[i]) for i in columns
        )
        return GAP.join(placed).rstrip()

    def block(columns: Sequence[int]) -> str:
        """Formats headers, rule and rows of some columns."""
        rule = GAP.join("-" * widths[i] for i in columns)
        return "\n".join([line(headers, columns), rule, *(line(row, columns) for row in cells)])

    return "\n\n".join(map(block, _blocks(widths, _terminal() if width is None else width)))


def _blocks(widths: Sequence[int], most: int | None) -> list[list[int]]:
    """Returns which columns are side by side: all of them, or the first and as many others as
    fit."""
    if most is None or len(widths) < 2:
        return [list(range(len(widths)))]
    blocks, used = [[0]], widths[0]
    for column, width in enumerate(widths[1:], 1):
        if used + len(GAP) + width > most and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(column)
        used += len(GAP) + width
    return blocks


def _terminal() -> int | None:
    """Returns the width of the terminal that stdout is; None if it is a file or a pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def _numeric(text: str) -> bool:
    return text in ("", "-") or text.lstrip("-").replace(",", "")[:1].isdigit()
