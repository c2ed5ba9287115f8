"""Finds the numeric columns of a table that can be targets, row by row, and why others cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from staticgraph.errors import BadGraph
from staticgraph.text.how_many import some
from staticgraph.text.progress import say

# Cells that mean "no label", in lower case: the unambiguous ones of pandas.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})


@dataclass
class NumberColumns:
    """The columns that may be targets.

    Attributes:
        names: the names of the candidate columns, in the table's order.
        filled: those that contain a number.
        broken: column -> the first line with something else, and that cell.
    """

    names: tuple[str, ...]
    filled: set[str] = field(default_factory=set)
    broken: dict[str, tuple[int, str]] = field(default_factory=dict)

    def see(self, row: dict[str, str], line: int) -> None:
        """Processes the next row."""
        for name in self.names:
            if name not in self.broken and not is_missing(row[name]):
                if is_number(row[name]):
                    self.filled.add(name)
                else:
                    self.broken[name] = line, row[name]

    def targets(self, path: Path) -> list[str]:
        """Returns the columns that contain only numbers and missing labels.

        Raises:
            BadGraph: if there is none; the message says why for each column.
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
        """Reports the chosen columns on stderr if there was a choice."""
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
    """Returns whether a cell means that there is no label."""
    return cell.strip().lower() in MISSING


def is_number(cell: str) -> bool:
    """Returns whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def label_of(cell: str) -> float:
    """Returns the number in a cell, or NaN if there is no label.

    Raises:
        ValueError: if it is neither.
    """
    if is_missing(cell):
        return math.nan
    if not is_number(cell):
        raise ValueError(f"{cell!r} is not a number")
    return float(cell)
