"""Reads a table of molecules larger than memory: scanned once, then read in chunks.

:func:`staticgraph.datasets.smiles.open_csv` determines the target columns, the number of rows and
the splits with all rows in memory; here they are determined in one pass that keeps at most one byte
per row. The molecules are then read chunk by chunk, by any process. Invariant: the chunks together
are the result of ``open_csv``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from staticgraph.datasets import smiles
from staticgraph.datasets.npz import SPLITS
from staticgraph.datasets.targets import PredictionTarget
from staticgraph.datasets.task_names import AUTO
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.graph_store import GraphStore


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
            BadGraph: as :func:`staticgraph.datasets.smiles.open_csv`, except for errors in a SMILES
                or a label, which are found when it is read.
        """
        graphs, words = 0, bytearray()
        sought: smiles.Sought | None = None
        split: str | None = None
        for row, line in smiles.each_row(path):
            if sought is None:
                names = smiles.columns_of(path, row)
                split = names.get("split")
                sought = smiles.Sought.of(path, row, names, target)
            sought.see(row, line)
            if split is not None:
                words.append(SPLITS.index(smiles.split_of(path, row[split], line)))
            graphs += 1
        assert sought is not None, "a table has rows"
        found = sought.found(path, task, progress)
        which = np.frombuffer(bytes(words), np.uint8)
        splits = {name: np.flatnonzero(which == k) for k, name in enumerate(SPLITS)}
        return cls(path, graphs, found, splits if split is not None else {})

    def stretches(self, graphs: int, first: int, last: int) -> Iterator[GraphStore]:
        """Yields rows ``first`` to ``last - 1`` as stores of at most ``graphs`` graphs.

        Raises:
            MissingPackage: if RDKit is not installed.
            BadGraph: if a SMILES or a label cannot be read; the message gives the line.
        """
        chem = smiles.rdkit()
        rows = islice(smiles.each_row(self.path), first, last)
        while here := list(islice(rows, graphs)):
            name = smiles.columns_of(self.path, here[0][0])["smiles"]
            molecules = [smiles.molecule(chem, row[name], self.path, line) for row, line in here]
            table, lines = [row for row, _ in here], [line for _, line in here]
            labels = self.target.labels(self.path, table, lines)
            yield smiles.store_of(molecules, labels, {}, self.path.stem, self.target.classes)
