"""Infers the task of a table's target columns (regression, binary or classes) and reads the labels.

Problem: ``0, 1, 2`` in a table may be three classes or counts, and there is no dtype to tell. Idea:
everything needed to decide is collected row by row in bounded memory (the distinct cells of each
column, up to a limit), so that tables larger than memory are treated like any other. The task is
guessed only where that is safe, and the guess is reported; ``task`` overrides it.

The labels are those of :mod:`staticgraph.training.tasks`: float32 for regression and binary, int64
from 0 for classes, whose names are in the schema.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from staticgraph.datasets.npz import as_float32
from staticgraph.datasets.specs import check_task
from staticgraph.errors import BadGraph
from staticgraph.store.columns import Array
from staticgraph.text.how_many import how_many, some
from staticgraph.text.progress import say

# Cells that mean "no label", in lower case: the unambiguous ones of pandas.
MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none"})
# The most distinct cells of a column that are kept: a column with more is not classes.
MOST_CLASSES = 1000
# Whole numbers are guessed to be classes if there are at most this many distinct ones, each in this
# many rows on average: counts and measurements are spread wider.
MOST_GUESSED, ROWS_EACH = 20, 5
# More distinct words than this, most of them in a single row, are names of molecules.
FEW_WORDS = 20
YES_NO = {"false": 0.0, "true": 1.0, "0": 0.0, "1": 1.0}
WORDS = frozenset({"false", "true"})


@dataclass
class Cells:
    """The distinct cells of the columns that may be targets.

    Attributes:
        names: the names of the columns.
        counts: column -> cell -> number of rows; None for a column with more than
            :data:`MOST_CLASSES` distinct cells.
        empty: column -> number of cells without a label, and the line of the first.
        words: column -> the first line with something else than a number, and that cell.
    """

    names: tuple[str, ...]
    counts: dict[str, Counter[str] | None] = field(default_factory=dict)
    empty: dict[str, tuple[int, int]] = field(default_factory=dict)
    words: dict[str, tuple[int, str]] = field(default_factory=dict)

    def see(self, row: dict[str, str], line: int) -> None:
        """Processes the next row."""
        for name in self.names:
            cell = row[name].strip()
            if is_missing(cell):
                count, first = self.empty.get(name, (0, line))
                self.empty[name] = count + 1, first
                continue
            if name not in self.words and not is_number(cell):
                self.words[name] = line, row[name]
            counts = self.counts.setdefault(name, Counter())
            if counts is not None:
                counts[cell] += 1
                if len(counts) > MOST_CLASSES:
                    self.counts[name] = None

    def targets(self, path: Path) -> list[str]:
        """Returns the columns that contain only numbers and missing labels.

        Raises:
            BadGraph: if there is none; the message says why for each column.
        """
        targets = [name for name in self.names if name in self.counts and name not in self.words]
        if not targets:
            why = f": {self._why_not(targets)}" if self.names else ""
            column = next(iter(self.words)) if len(self.words) == 1 else "COLUMN"
            raise BadGraph(
                f"{path} has no column of numbers to predict{why}; add one, and leave its cell "
                f"empty where there is no label, or name a column of classes: --target {column}"
            )
        return targets

    def tell(self, path: Path, targets: list[str]) -> None:
        """Reports the chosen columns on stderr if there was a choice."""
        if len(self.names) > 1:
            others = self._why_not(targets)
            say(
                f"{path.name}: predicts {some(targets)}"
                + (f"; not {others}" if others else "")
                + ("; --target names the right ones" if len(targets) > 1 else "")
            )

    def _why_not(self, targets: list[str]) -> str:
        return some(
            f"{name} (line {self.words[name][0]}: {self.words[name][1][:40]!r} is not a number)"
            if name in self.words
            else f"{name} (empty)"
            for name in self.names
            if name not in targets
        )


@dataclass(frozen=True)
class PredictionTarget:
    """The prediction target of a table.

    Attributes:
        columns: the names of the columns; one for classes.
        task: ``regression``, ``binary`` or ``classes``.
        codes: for classes, the cells of each class, in the order of the classes.
        classes: the names of the classes; empty if they are the numbers from 0.
        guessed: whether the task was inferred and could be another one.
        unlabelled: if numbers would be classes but for a missing label, the line of the first row
            without one.
    """

    columns: tuple[str, ...]
    task: str
    codes: tuple[tuple[str, ...], ...] = ()
    classes: tuple[str, ...] = ()
    guessed: bool = False
    unlabelled: int | None = None

    def labels(self, path: Path, rows: Sequence[dict[str, str]], lines: Sequence[int]) -> Array:
        """Returns ``[n, T]`` float32, NaN for missing labels; ``[n]`` int64 for classes.

        Raises:
            BadGraph: if a cell is not a label; the message gives its line.
        """
        if self.task == "classes":
            (name,) = self.columns
            code = {cell: number for number, cells in enumerate(self.codes) for cell in cells}
            return np.array([code[row[name].strip()] for row in rows], np.int64)
        numbers = np.empty((len(rows), len(self.columns)))
        for i, row in enumerate(rows):
            for j, name in enumerate(self.columns):
                try:
                    numbers[i, j] = self._number(row[name])
                except ValueError as error:
                    raise BadGraph(
                        f"{path}, line {lines[i]}: in {name}, {error}; leave the cell empty where "
                        "there is no label"
                    ) from None
        return as_float32(numbers, str(path))

    def _number(self, cell: str) -> float:
        if self.task == "binary" and (word := cell.strip().lower()) in WORDS:
            return YES_NO[word]
        return label_of(cell)

    def describe_choice(self, path: Path) -> str | None:
        """Returns a line that reports the inferred task; None if there was no choice."""
        if self.unlabelled is not None:
            return (
                f"{path.name}: {self.columns[0]} is taken as a number, since line "
                f"{self.unlabelled} has no label, which classes take in every row; if these are "
                "classes, drop the rows without; --task regression leaves this line out"
            )
        if not self.guessed:
            return None
        count = len(self.codes)
        names = some(self.classes) if self.classes else f"0 to {count - 1}"
        line = f"{path.name}: {self.columns[0]} is taken as {count} classes ({names})"
        if all(is_number(cells[0]) for cells in self.codes):
            line += (
                ", whose order counts for nothing; if these are counts, years or grades, --task "
                "regression takes them as numbers; --task classes leaves this line out"
            )
        return line


def target_of(
    path: Path, columns: Sequence[str], cells: Cells, task: str = "auto"
) -> PredictionTarget:
    """Determines the prediction target for some columns.

    Args:
        path: the table, for messages.
        columns: the columns to predict.
        cells: their distinct cells.
        task: one of :data:`staticgraph.datasets.specs.TASKS`; ``auto`` infers it.

    Raises:
        BadGraph: if the columns do not fit the task.
        ValueError: if there is no such task.
    """
    check_task(task)
    names = tuple(columns)
    if task == "classes" or (task == "auto" and len(names) == 1):
        counts = cells.counts.get(names[0]) or Counter()
        if task == "classes":
            return _classes(path, names, cells)
        if counts and not any(map(is_number, counts)) and not _yes_or_no(counts):
            _refuse_names(path, names[0], counts)
            return _classes(path, names, cells, guessed=True)
        if _are_codes(counts):
            if names[0] not in cells.empty:
                return _classes(path, names, cells, guessed=True)
            return PredictionTarget(names, "regression", unlabelled=cells.empty[names[0]][1])
    if task == "regression":
        return PredictionTarget(names, task)
    answers = all(_yes_or_no(cells.counts.get(name, Counter())) for name in names)
    if task == "binary" and not answers:
        name, cell = next(
            (name, _odd(cells.counts[name]))
            for name in names
            if not _yes_or_no(cells.counts.get(name, Counter()))
        )
        raise BadGraph(
            f"{path}: --task binary takes 0 and 1, or true and false, and {name} has {cell!r}: "
            "give --task classes or regression, or write 0 and 1"
        )
    return PredictionTarget(names, "binary" if answers else "regression")


def _yes_or_no(counts: Counter[str] | None) -> bool:
    """Returns whether all cells are 0, 1, true or false."""
    return counts is not None and all(
        cell.lower() in WORDS or (is_number(cell) and float(cell) in (0.0, 1.0)) for cell in counts
    )


def _odd(counts: Counter[str] | None) -> str:
    """Returns a cell that is not 0, 1, true or false."""
    cells = counts or Counter(["more than 1,000 different cells"])
    return next(cell for cell in cells if not _yes_or_no(Counter([cell])))


def _are_codes(counts: Counter[str]) -> bool:
    """Returns whether numbers look like classes.

    They do if they are few, whole, each in several rows on average, and either exactly two, or
    without gaps from 0 or 1. 0 and 1 alone are binary answers instead.
    """
    if not counts or not all(map(is_number, counts)):
        return False
    values = sorted({float(cell) for cell in counts})
    if not 1 < len(values) <= MOST_GUESSED or not all(value.is_integer() for value in values):
        return False
    unbroken = values[0] in (0, 1) and all(b - a == 1 for a, b in pairwise(values))
    often = counts.total() >= ROWS_EACH * len(values)
    return often and values != [0.0, 1.0] and (unbroken or len(values) == 2)


def _refuse_names(path: Path, name: str, counts: Counter[str]) -> None:
    """Rejects words that are mostly distinct; called only if the task was not given."""
    if len(counts) > FEW_WORDS and counts.total() < 2 * len(counts):
        raise BadGraph(
            f"{path}: {name} has {how_many(len(counts), 'different word')} in "
            f"{how_many(counts.total(), 'row')}, as a name has: give another --target, or --task "
            "classes if they are classes"
        )


def _classes(
    path: Path, names: tuple[str, ...], cells: Cells, *, guessed: bool = False
) -> PredictionTarget:
    """Returns one column as classes, in numerical or alphabetical order."""
    if len(names) != 1:
        raise BadGraph(
            f"{path}: classes are one column, and {', '.join(names)} are {len(names)}: name one "
            "with --target"
        )
    (name,) = names
    if name in cells.empty:
        count, line = cells.empty[name]
        raise BadGraph(
            f"{path}, line {line}: in {name}, there is no label ({how_many(count, 'such row')}), "
            "and classes take one in every row: drop such rows; or write the classes as columns of "
            "0 and 1, yes-no questions, of which an empty cell counts in neither loss nor metric"
        )
    counts = cells.counts.get(name)
    if not counts:
        raise BadGraph(
            f"{path}: {name} has more than {MOST_CLASSES:,} different cells, which are no classes: "
            "give --task regression, or another --target"
        )
    if not all(map(is_number, counts)):
        words = sorted(counts)
        return PredictionTarget(
            names, "classes", tuple((word,) for word in words), tuple(words), guessed
        )
    values = sorted({float(cell) for cell in counts})
    if broken := [cell for cell in counts if not float(cell).is_integer()]:
        raise BadGraph(
            f"{path}: --task classes takes words or whole numbers, and {name} has {broken[0]!r}: "
            "give --task regression"
        )
    codes = tuple(tuple(cell for cell in counts if float(cell) == value) for value in values)
    counted = values == list(range(len(values)))
    called = () if counted else tuple(f"{value:.15g}" for value in values)
    return PredictionTarget(names, "classes", codes, called, guessed)


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
