"""Plain aligned tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows under headers, numbers to the right, with a rule between."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [
        max(len(header), *(len(row[i]) for row in cells), 0) if cells else len(header)
        for i, header in enumerate(headers)
    ]
    right = [all(_numeric(row[i]) for row in cells) and bool(cells) for i in range(len(headers))]

    def line(values: Sequence[str]) -> str:
        placed = [
            v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)
        ]
        return "  ".join(placed).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *(line(row) for row in cells)])


def _numeric(text: str) -> bool:
    return text in ("", "-") or text.lstrip("-").replace(",", "")[:1].isdigit()
