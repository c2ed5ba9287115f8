"""Draws two axes with ticks and names."""

from __future__ import annotations

from docs.tools.svg import MUTED, Drawing


def axes(
    drawing: Drawing,
    left: float,
    top: float,
    width: float,
    height: float,
    across: tuple[int, int, int],
    up: tuple[int, int, int],
    name_across: str,
    name_up: str,
) -> None:
    """Draws two axes with ticks; ``across`` and ``up`` are each first value, last value, step."""
    drawing.line(left, top + height, left + width, top + height, MUTED)
    drawing.line(left, top, left, top + height, MUTED)
    for value in range(across[0], across[1] + 1, across[2]):
        x = left + width * (value - across[0]) / (across[1] - across[0])
        drawing.line(x, top + height, x, top + height + 4, MUTED)
        drawing.text(x, top + height + 18, str(value), fill=MUTED, size=12, anchor="middle")
    for value in range(up[0], up[1] + 1, up[2]):
        y = top + height - height * (value - up[0]) / (up[1] - up[0])
        drawing.line(left - 4, y, left, y, MUTED)
        drawing.text(left - 8, y + 4, str(value), fill=MUTED, size=12, anchor="end")
    drawing.text(left + width, top + height + 36, name_across, fill=MUTED, anchor="end")
    drawing.text(left + 8, top + 10, name_up, fill=MUTED)
