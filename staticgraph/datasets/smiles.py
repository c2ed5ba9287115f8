"""Reads a table with a SMILES column as molecules with OGB's integer features.

The features, their order and the order of the edges are those of OGB's ``smiles2graph``
(github.com/snap-stanford/ogb, ``ogb/utils/features.py``, MIT): nine integers per atom, three per
bond, and bond ``i`` as the edges ``2i`` and ``2i + 1``. A value outside its list gets the number
after the list's last.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.datasets.npz import SPLITS, both_directions
from staticgraph.datasets.number_columns import NumberColumns
from staticgraph.datasets.specs import AUTO
from staticgraph.datasets.targets import Cells, PredictionTarget, target_of
from staticgraph.errors import BadGraph, MissingPackage
from staticgraph.schema import Level
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_store import GraphStore
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import bar, say

CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
HYBRIDIZATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BOND_TYPE = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")
# Words in a column `split`, and the split that each means.
SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
# Separators that tables use instead of commas.
OTHER_MARKS = (";", "\t", "|")
# RDKit reads about 3,000 molecules per second and core, so this takes about two seconds.
PROGRESS_FROM = 5000


def open_csv(
    path: Path, target: str | Sequence[str] | None, progress: bool, task: str = AUTO
) -> GraphStore:
    """Reads a table with one header line and a column of SMILES (:func:`columns_of`).

    ``y`` is float32 ``[1, T]`` with NaN for missing labels
    (:data:`staticgraph.datasets.number_columns.MISSING`), or int64 ``[1]`` for classes
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
    chem = rdkit()
    rows, lines = _rows(path)
    names = columns_of(path, rows[0])
    sought = Sought.of(path, rows[0], names, target)
    for row, line in zip(rows, lines, strict=True):
        sought.see(row, line)
    found = sought.found(path, task, progress)
    labels = found.labels(path, rows, lines)
    molecules = [
        molecule(chem, row[names["smiles"]], path, line)
        for line, row in zip(
            lines,
            bar(
                rows,
                desc=f"reading {path.stem}",
                unit=" graphs",
                show=progress and len(rows) >= PROGRESS_FROM,
            ),
            strict=True,
        )
    ]
    splits = _splits(path, rows, lines, names.get("split"))
    return store_of(molecules, labels, splits, path.stem, found.classes)


def _rows(path: Path) -> tuple[list[dict[str, str]], list[int]]:
    """Returns the rows as dicts by column, and the line where each ends."""
    rows, lines = [], []
    for row, line in each_row(path):
        rows.append(row)
        lines.append(line)
    return rows, lines


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


def candidates_of(row: dict[str, str], names: dict[str, str]) -> tuple[str, ...]:
    """Returns the columns that may be targets: all except the SMILES and the split."""
    return tuple(name for name in row if name and name not in (names["smiles"], names.get("split")))


def rdkit() -> Any:
    """Imports and returns RDKit's ``Chem``.

    Raises:
        MissingPackage: if RDKit is not installed.
    """
    try:
        from rdkit import Chem, RDLogger  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            "a CSV with SMILES needs the package 'rdkit', which is not installed: pip install rdkit"
        ) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]  # BadGraph reports the line
    return Chem


def check_targets(path: Path, row: dict[str, str], wanted: Sequence[str]) -> None:
    """Rejects targets that are not columns.

    Raises:
        BadGraph: if one is not; the message names the existing columns.
    """
    missing = [name for name in wanted if name not in row]
    if missing:
        raise BadGraph(f"{path} has no column {missing[0]!r}; it has {', '.join(row)}")


@dataclass(frozen=True)
class Sought:
    """Finds the targets of a table, row by row.

    Attributes:
        given: the requested columns; empty for all numeric ones.
        columns: the candidate columns, if none was requested.
        cells: the distinct cells of all candidates.
    """

    given: tuple[str, ...]
    columns: NumberColumns
    cells: Cells

    @classmethod
    def of(
        cls,
        path: Path,
        row: dict[str, str],
        names: dict[str, str],
        target: str | Sequence[str] | None,
    ) -> Sought:
        """Prepares the search before the first row.

        Raises:
            BadGraph: if a requested target is not a column.
        """
        given = (target,) if isinstance(target, str) else tuple(target or ())
        check_targets(path, row, given)
        may_be = given or candidates_of(row, names)
        return cls(given, NumberColumns(() if given else may_be), Cells(may_be))

    def see(self, row: dict[str, str], line: int) -> None:
        """Processes the next row."""
        self.columns.see(row, line)
        self.cells.see(row, line)

    def found(self, path: Path, task: str, progress: bool) -> PredictionTarget:
        """Returns the target after the last row; with ``progress``, reports the choice on stderr.

        Raises:
            BadGraph: if there is no target, or it does not fit the task.
        """
        wanted = self.given or tuple(self.columns.targets(path))
        if progress and not self.given:
            self.columns.tell(path, list(wanted))
        target = target_of(path, wanted, self.cells, task)
        if progress and (line := target.said(path)):
            say(line)
        return target


def _splits(
    path: Path, rows: list[dict[str, str]], lines: list[int], column: str | None
) -> dict[str, IntArray]:
    if column is None:
        return {}
    pairs = zip(rows, lines, strict=True)
    found = np.array([split_of(path, row[column], line) for row, line in pairs])
    return {name: np.flatnonzero(found == name) for name in SPLITS}


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


def molecule(chem: Any, smiles: str, path: Path, line: int) -> tuple[Array, Array, Array]:
    """Returns atoms ``[n, 9]``, bonds ``[b, 2]`` and bond features ``[b, 3]``, all int64.

    Raises:
        BadGraph: if the SMILES is empty, or RDKit cannot read it.
    """
    if not smiles.strip():
        raise BadGraph(f"{path}, line {line}: the SMILES is empty; fill the cell, or drop the row")
    molecule = chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise BadGraph(
            f"{path}, line {line}: RDKit cannot read the SMILES {smiles!r}; fix or drop that line"
        )
    return _arrays(molecule)


def _arrays(molecule: Any) -> tuple[Array, Array, Array]:
    bonds = list(molecule.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    return (
        np.array([atom_features(atom) for atom in molecule.GetAtoms()], np.int64).reshape(-1, 9),
        np.array(ends, np.int64).reshape(-1, 2),
        np.array([bond_features(bond) for bond in bonds], np.int64).reshape(-1, 3),
    )


def atom_features(atom: Any) -> tuple[int, ...]:
    """Returns OGB's nine integers for an RDKit atom."""
    return (
        _within(atom.GetAtomicNum() - 1, 118),
        _place(str(atom.GetChiralTag()), CHIRALITY),
        _within(atom.GetTotalDegree(), 11),
        _within(atom.GetFormalCharge() + 5, 11),
        _within(atom.GetTotalNumHs(), 9),
        _within(atom.GetNumRadicalElectrons(), 5),
        _place(str(atom.GetHybridization()), HYBRIDIZATION),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    )


def bond_features(bond: Any) -> tuple[int, ...]:
    """Returns OGB's three integers for an RDKit bond."""
    return (
        _place(str(bond.GetBondType()), BOND_TYPE),
        _place(str(bond.GetStereo()), STEREO),
        int(bond.GetIsConjugated()),
    )


def _within(number: int, values: int) -> int:
    """Returns the number if it is from 0 to ``values - 1``, and ``values`` otherwise."""
    return number if 0 <= number < values else values


def _place(value: str, values: tuple[str, ...]) -> int:
    return values.index(value) if value in values else len(values)


def molecule_of(smiles: str) -> tuple[Array, Array, Array]:
    """Reads one molecule as :func:`open_csv` does.

    Returns:
        Atoms ``[n, 9]``, edges ``[2, 2b]`` and edge features ``[2b, 3]``, all int64.

    Raises:
        MissingPackage: if RDKit is not installed.
        BadGraph: if the SMILES is empty, or RDKit cannot read it.
    """
    if not smiles.strip():
        raise BadGraph("the SMILES is empty")
    molecule = rdkit().MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        raise BadGraph(f"RDKit cannot read the SMILES {smiles!r}")
    atoms, bonds, kinds = _arrays(molecule)
    return atoms, np.stack(both_directions(bonds.T)), np.repeat(kinds, 2, axis=0)


def store_of(
    molecules: list[tuple[Array, Array, Array]],
    labels: Array,
    splits: dict[str, IntArray],
    name: str,
    classes: tuple[str, ...] = (),
) -> GraphStore:
    """Builds a store of molecules.

    Args:
        molecules: for each, atoms ``[n, 9]``, bonds ``[b, 2]`` and bond features ``[b, 3]``.
        labels: ``[molecules, ...]``, the field ``y``.
        splits: named lists of molecules.
        name: the name of the store.
        classes: the names of the labels 0, 1, ..., if they have names.
    """
    atoms, bonds, kinds = zip(*molecules, strict=True)
    src, dst = both_directions(np.concatenate(bonds).T)
    fields: dict[str, tuple[Level, Array]] = {
        "x": ("node", np.concatenate(atoms)),
        "edge_attr": ("edge", np.repeat(np.concatenate(kinds), 2, axis=0)),
        "y": ("graph", labels),
    }
    store = GraphStore.from_arrays(
        np.array([len(atom) for atom in atoms]),
        np.array([2 * len(bond) for bond in bonds]),
        src,
        dst,
        fields,
        splits=splits,
        name=name,
    )
    described = tuple(
        replace(item, classes=classes) if item.name == "y" else item for item in store.schema
    )
    return replace(store, schema=replace(store.schema, fields=described, molecules=True))
