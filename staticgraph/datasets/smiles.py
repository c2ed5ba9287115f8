"""A table with a SMILES column -> molecules with OGB's integer features.

The features, their order and the order of the edges are those of OGB's ``smiles2graph``
(github.com/snap-stanford/ogb, ``ogb/utils/features.py``, MIT): nine integers an atom, three a bond,
bond ``i`` as the edges ``2i`` and ``2i + 1``. A value outside a list gets the list's last place.
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
from staticgraph.datasets.targets import Cells, PredictionTarget, target_of
from staticgraph.datasets.task_names import AUTO
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
# Words in a column `split` and the split that they mean.
SPLIT_WORDS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
# What tables have between cells instead of commas.
OTHER_MARKS = (";", "\t", "|")
# RDKit reads about 3,000 molecules a second and core: two seconds.
PROGRESS_FROM = 5000


def open_csv(
    path: Path, target: str | Sequence[str] | None, progress: bool, task: str = AUTO
) -> GraphStore:
    """Reads a table with one header line and a column of SMILES (:func:`columns_of`).

    ``y`` is float32 ``[1, T]`` with NaN for no label
    (:data:`staticgraph.datasets.number_columns.MISSING`), or int64 ``[1]`` of classes
    (:mod:`staticgraph.datasets.targets`); a column ``split`` of train, val (or valid) and test
    gives the splits.

    Args:
        path: the file.
        target: the columns to predict; by default all whose cells are numbers or missing, which a
            line to stderr names.
        progress: show that line, one on classes that were guessed, and a bar for large tables.
        task: what they are, one of :data:`staticgraph.datasets.task_names.TASKS`.

    Raises:
        MissingPackage: RDKit is not installed.
        BadGraph: no such column, a column twice, no target, a row with more or fewer cells than the
            header, a SMILES that is empty or that RDKit cannot read (with its line), a target that
            is not what ``task`` says.
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
    """The rows by column, each with as many cells as the header, and the line where each ends."""
    rows, lines = [], []
    for row, line in each_row(path):
        rows.append(row)
        lines.append(line)
    return rows, lines


def each_row(path: Path) -> Iterator[tuple[dict[str, str], int]]:
    """The rows of a table by column, each with as many cells as the header, and the line where it
    ends, one after the other.

    Raises:
        BadGraph: it is no table, has a column twice, or no row, or one of another length.
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
    """The columns by their names in small letters; ``smiles`` leads to the only one that has the
    word in its name where none is called so.

    Raises:
        BadGraph: there is none, or several.
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
    """The columns that may be targets: all but the SMILES and the split."""
    return tuple(name for name in row if name and name not in (names["smiles"], names.get("split")))


def rdkit() -> Any:
    """RDKit's ``Chem``.

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        from rdkit import Chem, RDLogger  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackage(
            "a CSV with SMILES needs the package 'rdkit', which is not installed: "
            "pip install 'staticgraph[smiles]'"
        ) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]  # our error says it with the line
    return Chem


def check_targets(path: Path, row: dict[str, str], wanted: Sequence[str]) -> None:
    """Refuses a target that is no column.

    Raises:
        BadGraph: it is none; the message names the columns that there are.
    """
    missing = [name for name in wanted if name not in row]
    if missing:
        raise BadGraph(f"{path} has no column {missing[0]!r}; it has {', '.join(row)}")


@dataclass(frozen=True)
class Sought:
    """The targets of a table, found a row at a time.

    Attributes:
        given: columns that were asked for; empty for all of numbers.
        columns: what may be a target, where none was asked for.
        cells: of all that may be one.
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
        """Before the first row.

        Raises:
            BadGraph: a target that is no column.
        """
        given = (target,) if isinstance(target, str) else tuple(target or ())
        check_targets(path, row, given)
        may_be = given or candidates_of(row, names)
        return cls(given, NumberColumns(() if given else may_be), Cells(may_be))

    def see(self, row: dict[str, str], line: int) -> None:
        """Takes the next row in."""
        self.columns.see(row, line)
        self.cells.see(row, line)

    def found(self, path: Path, task: str, progress: bool) -> PredictionTarget:
        """After the last row; with ``progress`` a line says what was chosen.

        Raises:
            BadGraph: there is no target, or it is not what the task takes.
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
    """The split that a cell names.

    Raises:
        BadGraph: none.
    """
    word = cell.strip().lower()
    if word not in SPLIT_WORDS:
        raise BadGraph(
            f"{path}, line {line}: split is {word!r}; use train, val or test in every row"
        )
    return SPLIT_WORDS[word]


def molecule(chem: Any, smiles: str, path: Path, line: int) -> tuple[Array, Array, Array]:
    """Atoms ``[n, 9]``, bonds ``[b, 2]`` and their features ``[b, 3]``, all int64.

    Raises:
        BadGraph: the SMILES is empty, or RDKit cannot read it.
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
    """OGB's nine integers of an RDKit atom."""
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
    """OGB's three integers of an RDKit bond."""
    return (
        _place(str(bond.GetBondType()), BOND_TYPE),
        _place(str(bond.GetStereo()), STEREO),
        int(bond.GetIsConjugated()),
    )


def _within(number: int, values: int) -> int:
    """The number itself from 0 below ``values``, and ``values`` for any other."""
    return number if 0 <= number < values else values


def _place(value: str, values: tuple[str, ...]) -> int:
    return values.index(value) if value in values else len(values)


def molecule_of(smiles: str) -> tuple[Array, Array, Array]:
    """One molecule as :func:`open_csv` reads it: atoms ``[n, 9]``, edges ``[2, 2b]`` and their
    features ``[2b, 3]``, all int64.

    Raises:
        MissingPackage: RDKit is not installed.
        BadGraph: the SMILES is empty, or RDKit cannot read it.
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
    """A store of molecules.

    Args:
        molecules: of each, atoms ``[n, 9]``, bonds ``[b, 2]`` and their kinds ``[b, 3]``.
        labels: ``[molecules, ...]``, the field ``y``.
        splits: named lists of molecules.
        name: of the store.
        classes: names of the labels 0, 1, ..., where they have some.
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
