"""Opens data sets by name or path as a :class:`GraphStore` with splits.

``open("esol")``, ``open("tu:PROTEINS")``, ``open("molecules.csv")`` and ``open("store/")`` all
return the same type, so that a command line, a benchmark or a notebook needs one line.
:data:`SPECS` lists the accepted forms, which the error for anything else prints. A data set with
published splits keeps them; any other gets a seeded random 80/10/10 split.

This package does not choose features: molecules get OGB's integer features, TU sets their node
labels, and everything else the fields of its ``Data``. For other choices, build the list of
``Data`` yourself and call ``GraphStore.from_pyg``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from staticgraph.datasets.specs import (
    AUTO,
    check_no_target,
    check_path,
    check_task,
    path_of,
    processed_by_pyg,
)
from staticgraph.datasets.specs import SPECS as SPECS
from staticgraph.datasets.specs import check as check
from staticgraph.datasets.specs import understood as understood
from staticgraph.sizes.whole_numbers import IntArray

if TYPE_CHECKING:
    from staticgraph.store.graph_store import GraphStore

# The default folder for downloads.
CACHE = Path("~/.cache/staticgraph")
# The share of a random split for validation, and the same for test.
HELD_OUT = 0.1


def open(
    spec: str | Path,
    *,
    root: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    task: str = AUTO,
    seed: int = 0,
    progress: bool = True,
    keep_order: bool = False,
) -> GraphStore:
    """Opens a data set, with the splits ``train``, ``val`` and ``test``.

    Args:
        spec: one of :data:`SPECS`. A folder that holds a data set takes precedence over a data set
            of that name in the package.
        root: the folder for downloads.
        target: the column or columns of a CSV to predict; by default every numeric one. Not
            accepted for other data sets, whose labels are their ``y``.
        task: what the target is: ``regression`` or ``binary`` (0 and 1), with float32 ``y``, or
            ``classes``, with int64 ``y`` from 0 and the names of the classes in
            ``store.schema["y"].classes``. ``auto`` leaves ``y`` as it is, but infers the task of a
            CSV: words are classes, and so are a few whole numbers from 0 or 1 that occur often,
            which a line on stderr reports.
        seed: the seed of the random split, if the data set has no splits.
        progress: show a progress bar for large data sets.
        keep_order: leave edges in the data set's order; see :meth:`GraphStore.from_pyg`.

    Raises:
        UnknownDataset: if the spec is none of :data:`SPECS`, or there is no data set of that name;
            the message lists the accepted forms.
        FileNotFoundError: if it is a path that does not exist.
        DatasetUnavailable: if it is not on this machine and cannot be downloaded.
        MissingPackage: if a package of an extra is not installed.
        BadGraph: if the data cannot be stored, or the target does not fit ``task``.
        ValueError: if a target is given for anything but a CSV, or there is no such task.
    """
    check_task(task)
    text = str(spec)
    path = path_of(text)
    if path is None:
        from staticgraph.datasets import pyg

        check_no_target(target, text)
        scheme, _, name = text.partition(":")
        folder = Path(root or CACHE).expanduser()
        store = getattr(pyg, f"open_{scheme}")(name, folder, progress)
    else:
        store = _open_path(path, text, target, progress, task)
    if task != AUTO and (path is None or path.suffix != ".csv"):
        from staticgraph.datasets.as_task import as_task

        store = as_task(store, task)
    store = store.in_first_order() if keep_order else store
    if "train" in store.splits:
        return store
    return store.with_splits(**random_split(len(store), seed))


def _open_path(
    path: Path, spec: str, target: str | Sequence[str] | None, progress: bool, task: str
) -> GraphStore:
    check_path(path, spec, target)
    if path.is_dir():
        if processed := processed_by_pyg(path):
            from staticgraph.datasets.pyg import open_pt

            return open_pt(processed, progress, path.resolve().name)
        from staticgraph.store.graph_store import GraphStore

        return GraphStore.load(path)
    if path.suffix == ".npz":
        from staticgraph.datasets.npz import open_npz

        return open_npz(path)
    if path.suffix == ".pt":
        from staticgraph.datasets.pyg import open_pt

        return open_pt(path, progress)
    from staticgraph.datasets.table import open_csv

    return open_csv(path, target, progress, task)


def random_split(graphs: int, seed: int) -> dict[str, IntArray]:
    """Returns a random 80/10/10 split, each part ascending; deterministic per seed."""
    order = np.random.default_rng(seed).permutation(graphs)
    held = int(graphs * HELD_OUT)
    return {
        "train": np.sort(order[2 * held :]),
        "val": np.sort(order[:held]),
        "test": np.sort(order[held : 2 * held]),
    }
