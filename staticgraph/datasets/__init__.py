"""Data sets by name or by path: one word in, a :class:`GraphStore` with splits out.

``open("esol")``, ``open("tu:PROTEINS")``, ``open("molecules.csv")`` and ``open("store/")`` all give
the same thing, so that a command line, a benchmark and a notebook need one line. What is understood
stands in :data:`SPECS`, which the error for anything else prints. A data set with published splits
keeps them; any other gets a seeded random split, 80/10/10.

What it does not do: choose features. Molecules get OGB's integer features, TU sets their node
labels, everything else what its ``Data`` carries; for other choices build the list of ``Data``
yourself and call ``GraphStore.from_pyg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from staticgraph.datasets.shipped import shipped
from staticgraph.errors import UnknownDataset
from staticgraph.files.folder import repair
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store.files import MANIFEST
from staticgraph.store.graph_store import GraphStore

SPECS = (
    ("esol", "1,128 molecules with their solubility, which come with the package"),
    ("tu:NAME", "a TUDataset, such as tu:PROTEINS (through PyG)"),
    ("molnet:NAME", "a MoleculeNet set, such as molnet:ESOL (through PyG; the extra 'smiles')"),
    ("ogb:NAME", "an OGB graph property set, such as ogb:ogbg-molhiv (the extra 'ogb')"),
    ("FOLDER", "a store that GraphStore.save wrote"),
    ("FILE.npz", "molecules or a TU set in the layouts of docs/datasets.md"),
    ("FILE.pt", "a list of torch_geometric.data.Data, written by torch.save"),
    ("FILE.csv", "a table with a SMILES column (the extra 'smiles')"),
)
# Where downloads go unless `root` says otherwise.
CACHE = Path("~/.cache/staticgraph")
# The share of a random split that goes to validation, and the same to test.
HELD_OUT = 0.1


def open(
    spec: str | Path,
    *,
    root: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> GraphStore:
    """Opens a data set, with the splits ``train``, ``val`` and ``test``.

    Args:
        spec: one of :data:`SPECS`. A name that comes with the package, unless there is a file or
            a folder of that name here.
        root: folder for downloads.
        target: the column or columns of a CSV to predict; by default every numeric one. Refused for
            anything else, whose labels are its ``y``.
        seed: of the random split, where the data set brings none.
        progress: show a bar where it takes more than a moment.

    Raises:
        UnknownDataset: the specification is none of :data:`SPECS`, or no set of that name exists;
            the message lists what is understood.
        FileNotFoundError: it is a path, and nothing is there.
        DatasetUnavailable: it is not here and cannot be downloaded.
        MissingPackage: one of an extra is not installed.
        BadGraph: the data cannot be stored.
        ValueError: a target of what is no CSV.
    """
    text = str(spec)
    path = _path_of(text)
    if path is None:
        from staticgraph.datasets import pyg

        _check_no_target(target, text)
        scheme, _, name = text.partition(":")
        folder = Path(root or CACHE).expanduser()
        store = getattr(pyg, f"open_{scheme}")(name, folder, progress)
    else:
        store = _open_path(path, text, target, progress)
    if "train" in store.splits:
        return store
    return store.with_splits(**random_split(len(store), seed))


def check(spec: str | Path, *, target: str | Sequence[str] | None = None) -> None:
    """Refuses at once what :func:`open` would refuse for its name alone; nothing is read.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as :func:`open`.
    """
    path = _path_of(str(spec))
    if path is None:
        _check_no_target(target, str(spec))
    else:
        _check_path(path, str(spec), target)


def _path_of(spec: str) -> Path | None:
    """Where a data set lies; None for one that is known by its name."""
    scheme, _, name = spec.partition(":")
    if scheme in ("tu", "molnet", "ogb") and name:
        return None
    path = Path(spec).expanduser()
    return shipped()[spec] if spec in shipped() and not path.exists() else path


def _check_path(path: Path, spec: str, target: str | Sequence[str] | None) -> None:
    repair(path)
    if path.is_dir():
        if not (path / MANIFEST).exists():
            raise UnknownDataset(f"{spec} is a folder without a store in it.\n{understood()}")
    elif path.suffix not in (".npz", ".pt", ".csv"):
        raise UnknownDataset(f"cannot tell what data set {spec!r} is.\n{understood()}")
    elif not path.exists():
        raise FileNotFoundError(f"{spec}: there is no such file (looked in {Path.cwd()})")
    if path.suffix != ".csv":
        _check_no_target(target, spec)


def _open_path(
    path: Path, spec: str, target: str | Sequence[str] | None, progress: bool
) -> GraphStore:
    _check_path(path, spec, target)
    if path.is_dir():
        return GraphStore.load(path)
    if path.suffix == ".npz":
        from staticgraph.datasets.npz import open_npz

        return open_npz(path)
    if path.suffix == ".pt":
        from staticgraph.datasets.pyg import open_pt

        return open_pt(path, progress)
    from staticgraph.datasets.smiles import open_csv

    return open_csv(path, target, progress)


def _check_no_target(target: str | Sequence[str] | None, spec: str) -> None:
    if target is not None:
        raise ValueError(
            f"target={target!r} chooses columns of a CSV, and {spec} is none: its labels are its "
            "y, all of them; leave target (--target) out, or make a store whose graphs have the "
            "labels that you want (graph.y = graph.y[:, [0]], then GraphStore.from_pyg(...))"
        )


def understood() -> str:
    """The specifications that :func:`open` understands, one a line."""
    width = max(len(form) for form, _ in SPECS)
    lines = (f"  {form:<{width}}  {meaning}" for form, meaning in SPECS)
    return "\n".join(["Understood are:", *lines])


def random_split(graphs: int, seed: int) -> dict[str, IntArray]:
    """Graph numbers of a random 80/10/10 split, each list ascending; the same for the same seed."""
    order = np.random.default_rng(seed).permutation(graphs)
    held = int(graphs * HELD_OUT)
    return {
        "train": np.sort(order[2 * held :]),
        "val": np.sort(order[:held]),
        "test": np.sort(order[held : 2 * held]),
    }
