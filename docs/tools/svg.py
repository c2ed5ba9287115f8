"""A drawing of rectangles, circles, lines and text, written as SVG.

The drawing has its own background, so that it is readable on light and on dark pages. Numbers are
rounded to a tenth of a unit, so that machines whose last digits differ write the same file.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

PAPER, EDGE = "#ffffff", "#d5dce3"
INK, MUTED, LINE = "#1f2d3a", "#5a6b7b", "#c6d0d9"
TEAL, BLUE, PLUM = "#00796b", "#2f6db5", "#8a4f9e"
SOFT_TEAL, SOFT_BLUE, SOFT_PLUM = "#bfe3de", "#cfe0f4", "#e6d5ec"
PADDING, ROSE = "#d9a13b", "#c8455a"
# Line and fill colours of successive graphs or buckets.
OF_GRAPH = ((TEAL, SOFT_TEAL), (BLUE, SOFT_BLUE), (PLUM, SOFT_PLUM))
WIDTH = 760
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def number(value: float) -> str:
    """Formats a number to one decimal, without a trailing zero."""
    return f"{round(float(value), 1) + 0.0:g}"


class Drawing:
    """Shapes drawn over one another, in the order in which they were added."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "none",
        *,
        stroke: str = "none",
        dash: str = "",
        line: float = 1.0,
        round: float = 0.0,
        opacity: float = 1.0,
    ) -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        more += f' rx="{number(round)}"' if round else ""
        more += f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._parts.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{line:g}"{more}/>'
        )

    def padding(self, x: float, y: float, width: float, height: float) -> None:
        """Draws rows that belong to no graph."""
        self.rect(x, y, width, height, "url(#padding)", stroke=PADDING)

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        fill: str,
        *,
        stroke: str = "none",
        line: float = 1.0,
        opacity: float = 1.0,
    ) -> None:
        more = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self._parts.append(
            f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(radius)}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{line:g}"{more}/>'
        )

    def line(
        self,
        x: float,
        y: float,
        to_x: float,
        to_y: float,
        stroke: str = LINE,
        *,
        line: float = 1.0,
        dash: str = "",
    ) -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{number(x)}" y1="{number(y)}" x2="{number(to_x)}" y2="{number(to_y)}" '
            f'stroke="{stroke}" stroke-width="{line:g}"{more}/>'
        )

    def path(self, points: Iterable[str], stroke: str, *, line: float = 1.0, fill="none") -> None:
        self._parts.append(
            f'<path d="{" ".join(points)}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{line:g}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 13,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        more = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{size}" fill="{fill}" '
            f'text-anchor="{anchor}"{more}>{escape(words)}</text>'
        )

    def written(self) -> str:
        """Returns the contents of the SVG file."""
        body = "\n".join(self._parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" font-family="{FONT}">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><pattern id="padding" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="6" height="6" fill="#fbf3e0"/>'
            f'<rect width="2" height="6" fill="{PADDING}" fill-opacity="0.4"/></pattern></defs>\n'
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" '
            f'fill="{PAPER}" stroke="{EDGE}"/>\n{body}\n</svg>\n'
        )
