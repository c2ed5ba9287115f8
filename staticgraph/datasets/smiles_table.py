"""A table of molecules larger than memory: looked through once, then read in stretches.

What :func:`staticgraph.datasets.smiles.open_csv` decides with all rows at hand (which columns are
targets, how many rows there are, the splits) is decided here in one pass that keeps a byte a row;
the molecules are then read a stretch at a time, by whichever process. Invariant: the stretches
together are what ``open_csv`` gives.
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
    """What is known of a table before its molecules are read.

    Attributes:
        path: the file.
        graphs: rows.
        target: the columns to predict, and what they are.
        splits: rows of each, where there is a column ``split``.
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
        """Looks through a table; with ``progress`` a line names the targets that were found.

        Raises:
            BadGraph: as :func:`staticgraph.datasets.smiles.open_csv`, but for what is wrong with a
                SMILES or a label, which is found when it is read.
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
        """Rows ``first`` to ``last``, less one, as stores of at most so many graphs.

        Raises:
            MissingPackage: RDKit is not installed.
            BadGraph: a SMILES or a label that cannot be read, with its line.
        """
        chem = smiles.rdkit()
        rows = islice(smiles.each_row(self.path), first, last)
        while here := list(islice(rows, graphs)):
            name = smiles.columns_of(self.path, here[0][0])["smiles"]
            molecules = [smiles.molecule(chem, row[name], self.path, line) for row, line in here]
            table, lines = [row for row, _ in here], [line for _, line in here]
            labels = self.target.labels(self.path, table, lines)
            yield smiles.store_of(molecules, labels, {}, self.path.stem, self.target.classes)
