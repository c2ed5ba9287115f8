"""Reads a table of molecules: comma-separated values with a column of SMILES.

A table is read twice: first its cells, which say what the targets mean, how many rows there are and
to which split each belongs; then its molecules, all at once or some rows at a time, so that several
processes can read one table.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from staticgraph.datasets import smiles
from staticgraph.datasets.npz import SPLITS
from staticgraph.datasets.specs import AUTO
from staticgraph.datasets.targets import Cells, PredictionTarget, target_of
from staticgraph.errors import BadGraph
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import bar, say

# Words in a column `split`, and the split that each means.
SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
# Separators that tables use instead of commas.
OTHER_MARKS = (";", "\t", "|")
# RDKit reads about 3,000 molecules per second and core, so this takes about two seconds.
PROGRESS_FROM = 5000


@dataclass(frozen=True)
class Table:
    """What is known about a table before its molecules are read.

    Attributes:
        path: the file.
        graphs: the number of rows.
        target: the columns to predict, and their task.
        splits: split -> its rows; empty without a column ``split``.
    """

    path: Path
    graphs: int
    target: PredictionTarget
    splits: dict[str, IntArray]

    @classmethod
    def of(
        cls,
        path: Path,
        target: str | Sequence[str] | None = None,
        progress: bool = False,
        task: str = AUTO,
    ) -> Table:
        """Scans a table; with ``progress``, a line names the targets that were found.

        Raises:
            BadGraph: as :func:`open_csv`, except for errors in a SMILES or a label, which are found
                when it is read.
        """
        targets = (target,) if isinstance(target, str) else tuple(target or ())
        graphs, words = 0, bytearray()
        cells, split = Cells(()), None
        for row, line in each_row(path):
            if not graphs:
                names = columns_of(path, row)
                split = names.get("split")
                if missing := [name for name in targets if name not in row]:
                    raise BadGraph(f"{path} has no column {missing[0]!r}; it has {', '.join(row)}")
                others = (name for name in row if name and name not in (names["smiles"], split))
                cells = Cells(targets or tuple(others))
            cells.see(row, line)
            if split is not None:
                words.append(SPLITS.index(split_of(path, row[split], line)))
            graphs += 1
        columns = targets or tuple(cells.targets(path))
        if progress and not targets:
            cells.tell(path, list(columns))
        predicted = target_of(path, columns, cells, task)
        if progress and (line := predicted.describe_choice(path)):
            say(line)
        which = np.frombuffer(bytes(words), np.uint8)
        splits = {name: np.flatnonzero(which == k) for k, name in enumerate(SPLITS)}
        return cls(path, graphs, predicted, splits if split is not None else {})

    def stretches(
        self, graphs: int, first: int, last: int, progress: bool = False
    ) -> Iterator[GraphStore]:
        """Yields rows ``first`` to ``last - 1`` as stores of at most ``graphs`` graphs.

        With ``progress``, the rows of a large store show a progress bar.

        Raises:
            MissingPackage: if RDKit is not installed.
            BadGraph: if a SMILES or a label cannot be read; the message gives the line.
        """
        chem = smiles.rdkit()
        rows = islice(each_row(self.path), first, last)
        while here := list(islice(rows, graphs)):
            name = columns_of(self.path, here[0][0])["smiles"]
            labels = self.target.labels(self.path, [row for row, _ in here], [n for _, n in here])
            rows_read = bar(
                here,
                desc=f"reading {self.path.stem}",
                unit=" graphs",
                show=progress and len(here) >= PROGRESS_FROM,
            )
            molecules = [
                smiles.molecule(chem, row[name], self.path, line) for row, line in rows_read
            ]
            yield smiles.store_of(molecules, labels, {}, self.path.stem, self.target.classes)


def open_csv(
    path: Path, target: str | Sequence[str] | None, progress: bool, task: str = AUTO
) -> GraphStore:
    """Reads a table with one header line and a column of SMILES (:func:`columns_of`).

    ``y`` is float32 ``[1, T]`` with NaN for missing labels
    (:data:`staticgraph.datasets.targets.MISSING`), or int64 ``[1]`` for classes
    (:mod:`staticgraph.datasets.targets`); a column ``split`` with train, val (or valid) and test
    gives the splits.

    Args:
        path: the file.
        target: the columns to predict; by default all whose cells are numbers or missing, which a
            line on stderr names.
        progress: show that line, a line about inferred classes, and a progress bar for large
            tables.
        task: the task, one of :data:`staticgraph.datasets.specs.TASKS`.

    Raises:
        MissingPackage: if RDKit is not installed.
        BadGraph: if a column is missing or duplicated, there is no target, a row has more or fewer
            cells than the header, a SMILES is empty or RDKit cannot read it (with its line), or the
            target does not fit ``task``.
    """
    smiles.rdkit()
    table = Table.of(path, target, progress, task)
    (store,) = table.stretches(table.graphs, 0, table.graphs, progress)
    return store.with_splits(**table.splits)


def each_row(path: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Yields the rows of a table as dicts by column, each with the line where it ends.

    Raises:
        BadGraph: if the file is not a table, a column is duplicated, there are no rows, or a row
            does not have as many cells as the header.
    """
    empty = True
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            names = [name.lower() for name in header]
            for name in header:
                if name and names.count(name.lower()) > 1:
                    raise BadGraph(
                        f"{path} has the column {name!r} more than once, so that one would "
                        "hide the other; rename or drop one"
                    )
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise BadGraph(
                        f"{path}, line {reader.line_num}: {how_many(len(cells), 'cell')} where the "
                        f"header has {how_many(len(header), 'column')}; put quotes around a cell "
                        "with a comma in it"
                    )
                empty = False
                yield dict(zip(header, cells, strict=True)), reader.line_num
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadGraph(f"{path} is not UTF-8 (byte {byte:#x}): save it as UTF-8") from None
    except csv.Error as error:
        raise BadGraph(f"{path} is not a text table: {error}") from None
    if empty:
        raise BadGraph(f"{path} has no rows below its header")


def columns_of(path: Path, row: dict[str, str]) -> dict[str, str]:
    """Returns the columns by their lower-case names.

    If no column is called ``smiles``, that key refers to the only one whose name contains the word.

    Raises:
        BadGraph: if there is no such column, or several.
    """
    names = {name.lower(): name for name in row if name}
    if "smiles" not in names:
        like = [name for small, name in names.items() if "smiles" in small]
        mark = next((mark for mark in OTHER_MARKS if mark in "".join(row)), None)
        if len(row) == 1 and mark:
            raise BadGraph(
                f"{path} has cells separated by {mark!r}: separate them by commas "
                "(pandas.read_csv(..., sep=None, engine='python').to_csv(..., index=False))"
            )
        if len(like) != 1:
            raise BadGraph(f"{path} has the columns {', '.join(row)}; one must be called smiles")
        names["smiles"] = like[0]
    return names


def split_of(path: Path, cell: str, line: int) -> str:
    """Returns the split that a cell names.

    Raises:
        BadGraph: if it names none.
    """
    word = cell.strip().lower()
    if word not in SPLIT_WORDS:
        raise BadGraph(
            f"{path}, line {line}: split is {word!r}; use train, val or test in every row"
        )
    return SPLIT_WORDS[word]
