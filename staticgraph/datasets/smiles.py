"""Reads SMILES as molecules with OGB's integer features.

The features, their order and the order of the edges are those of OGB's ``smiles2graph``
(github.com/snap-stanford/ogb, ``ogb/utils/features.py``, MIT): nine integers per atom, three per
bond, and bond ``i`` as the edges ``2i`` and ``2i + 1``. A value outside its list gets the number
after the list's last.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from staticgraph.datasets.npz import both_directions
from staticgraph.errors import BadGraph, MissingPackage
from staticgraph.schema import Level
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.columns import Array
from staticgraph.store.graph_store import GraphStore

CHIRALITY = ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER")
HYBRIDIZATION = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
BOND_TYPE = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
STEREO = ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")


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
    """Reads one molecule as :func:`staticgraph.datasets.table.open_csv` does.

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
