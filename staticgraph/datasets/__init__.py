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
from typing import TYPE_CHECKING

import numpy as np

from staticgraph.datasets.specs import SPECS as SPECS
from staticgraph.datasets.specs import check as check
from staticgraph.datasets.specs import check_no_target, check_path, path_of, processed_by_pyg
from staticgraph.datasets.specs import understood as understood
from staticgraph.datasets.task_names import AUTO, check_task
from staticgraph.sizes.whole_numbers import IntArray

if TYPE_CHECKING:
    from staticgraph.store.graph_store import GraphStore

# Where downloads go unless `root` says otherwise.
CACHE = Path("~/.cache/staticgraph")
# The share of a random split that goes to validation, and the same to test.
HELD_OUT = 0.1


def open(
    spec: str | Path,
    *,
    root: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    task: str = AUTO,
    seed: int = 0,
    progress: bool = True,
) -> GraphStore:
    """Opens a data set, with the splits ``train``, ``val`` and ``test``.

    Args:
        spec: one of :data:`SPECS`. A name that comes with the package, unless a folder of that
            name here holds a data set.
        root: folder for downloads.
        target: the column or columns of a CSV to predict; by default every numeric one. Refused for
            anything else, whose labels are its ``y``.
        task: what the target is: ``regression``, ``binary`` (0 and 1) or ``classes``, so that ``y``
            is float32, or int64 from 0, with the names of classes in ``store.schema["y"].classes``;
            ``auto`` leaves it as it is, and of a CSV finds out: words are classes, and so are a few
            whole numbers from 0 or 1 that come often, which a line to stderr says.
        seed: of the random split, where the data set brings none.
        progress: show a bar where it takes more than a moment.

    Raises:
        UnknownDataset: the specification is none of :data:`SPECS`, or no set of that name exists;
            the message lists what is understood.
        FileNotFoundError: it is a path, and nothing is there.
        DatasetUnavailable: it is not here and cannot be downloaded.
        MissingPackage: one of an extra is not installed.
        BadGraph: the data cannot be stored, or the target is not what ``task`` says.
        ValueError: a target of what is no CSV, or no such task.
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
    from staticgraph.datasets.smiles import open_csv

    return open_csv(path, target, progress, task)


def random_split(graphs: int, seed: int) -> dict[str, IntArray]:
    """Graph numbers of a random 80/10/10 split, each list ascending; the same for the same seed."""
    order = np.random.default_rng(seed).permutation(graphs)
    held = int(graphs * HELD_OUT)
    return {
        "train": np.sort(order[2 * held :]),
        "val": np.sort(order[:held]),
        "test": np.sort(order[held : 2 * held]),
    }
