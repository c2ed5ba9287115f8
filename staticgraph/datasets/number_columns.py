"""Which columns of a table are numbers to predict, and why others are not; a row at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from staticgraph.errors import BadGraph
from staticgraph.text.progress import say
from staticgraph.text.some import some

# Cells that say "no label", in small letters; those of pandas that can mean nothing else.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})


@dataclass
class NumberColumns:
    """The columns that may be targets.

    Attributes:
        names: of the columns that are asked about, in the table's order.
        filled: those with a number in them.
        broken: column -> the first line with something else, and what stands there.
    """

    names: tuple[str, ...]
    filled: set[str] = field(default_factory=set)
    broken: dict[str, tuple[int, str]] = field(default_factory=dict)

    def see(self, row: dict[str, str], line: int) -> None:
        """Takes the next row in."""
        for name in self.names:
            if name not in self.broken and not is_missing(row[name]):
                if is_number(row[name]):
                    self.filled.add(name)
                else:
                    self.broken[name] = line, row[name]

    def targets(self, path: Path) -> list[str]:
        """The columns with numbers and missing labels alone.

        Raises:
            BadGraph: there is none; the message says why each is not.
        """
        found = [name for name in self.names if name in self.filled and name not in self.broken]
        if not found:
            why = f": {self._why_not(found)}" if self.names else ""
            column = next(iter(self.broken)) if len(self.broken) == 1 else "COLUMN"
            raise BadGraph(
                f"{path} has no column of numbers to predict{why}; add one, and leave its cell "
                f"empty where there is no label, or name a column of classes: --target {column}"
            )
        return found

    def tell(self, path: Path, found: list[str]) -> None:
        """Says what was chosen, in a line to stderr, where there was a choice."""
        if len(self.names) > 1:
            others = self._why_not(found)
            say(
                f"{path.name}: predicts {some(found)}"
                + (f"; not {others}" if others else "")
                + ("; --target names the right ones" if len(found) > 1 else "")
            )

    def _why_not(self, found: list[str]) -> str:
        return some(
            f"{name} (line {self.broken[name][0]}: {self.broken[name][1][:40]!r} is not a number)"
            if name in self.broken
            else f"{name} (empty)"
            for name in self.names
            if name not in found
        )


def is_missing(cell: str) -> bool:
    """Whether a cell says that there is no label."""
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def label_of(cell: str) -> float:
    """The number in a cell, NaN where there is no label.

    Raises:
        ValueError: it is neither.
    """
    if is_missing(cell):
        return math.nan
    if not is_number(cell):
        raise ValueError(f"{cell!r} is not a number")
    return float(cell)
