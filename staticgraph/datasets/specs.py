"""Specs of data sets: names and paths, told apart without reading any data.

Nothing here imports torch, so that a command line can report a missing file at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from staticgraph.datasets.shipped import shipped
from staticgraph.errors import UnknownDataset
from staticgraph.files.folder import repair
from staticgraph.store import MANIFEST
from staticgraph.text.how_many import nearest

# ``auto`` infers which of the others applies.
TASKS = ("auto", "regression", "binary", "classes")
AUTO = TASKS[0]


def check_task(task: str) -> None:
    """Rejects an unknown task.

    Raises:
        ValueError: if it is none of :data:`TASKS`.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}; choose one of {', '.join(TASKS)}")


# Files that PyG keeps next to the graphs to record how they were made.
NO_GRAPHS = ("pre_transform", "pre_filter")
# Suffixes of compressed files and archives.
PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz")
SPECS = (
    ("esol", "1,128 molecules with their solubility, which come with the package"),
    ("tu:NAME", "a TUDataset, such as tu:PROTEINS (through PyG)"),
    ("molnet:NAME", "a MoleculeNet set, such as molnet:ESOL (through PyG; the extra 'smiles')"),
    ("ogb:NAME", "an OGB graph property set, such as ogb:ogbg-molhiv (the extra 'ogb')"),
    ("FOLDER", "a store that GraphStore.save wrote, or the root of a PyG InMemoryDataset"),
    ("FILE.npz", "molecules or a TU set in the layouts of docs/datasets.md"),
    ("FILE.pt", "a list of torch_geometric.data.Data, written by torch.save"),
    ("FILE.csv", "a table with a SMILES column (the extra 'smiles')"),
)


def check(spec: str | Path, *, target: str | Sequence[str] | None = None) -> None:
    """Rejects specs that :func:`staticgraph.datasets.open` rejects before reading data.

    Raises:
        UnknownDataset, FileNotFoundError, ValueError: as :func:`staticgraph.datasets.open`.
    """
    path = path_of(str(spec))
    if path is None:
        check_no_target(target, str(spec))
    else:
        check_path(path, str(spec), target)


def by_pyg(spec: str | Path) -> bool:
    """Returns whether PyG, which takes seconds to import, is needed to read a data set."""
    path = path_of(str(spec))
    return path is None or path.suffix == ".pt" or processed_by_pyg(path) is not None


def path_of(spec: str) -> Path | None:
    """Returns the path of a data set; None for one that PyG or OGB opens by name."""
    scheme, _, name = spec.partition(":")
    if scheme in ("tu", "molnet", "ogb") and name:
        return None
    path = Path(spec).expanduser()
    return shipped()[spec] if spec in shipped() and not _is_read(path) else path


def _is_read(folder: Path) -> bool:
    """Returns whether a folder holds a data set; a run's folder, for example, does not."""
    return (folder / MANIFEST).exists() or processed_by_pyg(folder) is not None


def check_path(path: Path, spec: str, target: str | Sequence[str] | None) -> None:
    """Rejects a path without a data set, and a target for anything but a CSV.

    Raises:
        UnknownDataset: if it is not a file or folder of a data set.
        FileNotFoundError: if there is no such file.
        ValueError: if a target is given for anything but a CSV.
    """
    repair(path)
    if path.is_dir():
        if not _is_read(path):
            raise UnknownDataset(
                f"{spec} is a folder without a store in it, nor one file processed/*.pt.\n"
                f"{understood()}"
            )
    elif path.suffix not in (".npz", ".pt", ".csv"):
        raise UnknownDataset(f"{_unread(path, spec)}\n{understood()}")
    elif not path.exists():
        remedy = ""
        if path.parts[-3:-1] == ("examples", "data"):
            names = ", ".join(shipped())
            remedy = f"; it is in a clone of the repository. Here are, by name: {names}"
        raise FileNotFoundError(f"{spec}: there is no such file (looked in {Path.cwd()}){remedy}")
    if path.suffix != ".csv":
        check_no_target(target, spec)


def _unread(path: Path, spec: str) -> str:
    """Returns the error message for a spec that is neither a known name nor a readable file."""
    if path.suffix.lower() in PACKED:
        return f"{spec} is a packed file: unpack it first."
    if path.is_file():
        return (
            f"{spec} is a file that ends in {path.suffix or 'nothing'}, which is not read. A table "
            "with commas is read as .csv; of anything else make a list of Data in Python, and "
            "GraphStore.from_pyg(graphs).save(folder)."
        )
    meant = nearest(spec, shipped()) if ":" not in spec else None
    return f"cannot tell what data set {spec!r} is" + (f": did you mean {meant}?" if meant else ".")


def processed_by_pyg(folder: Path) -> Path | None:
    """Returns the file with the graphs of a PyG ``InMemoryDataset`` rooted at ``folder``.

    None if there is no such file, there are several, or the folder is a store.
    """
    if (folder / MANIFEST).exists():
        return None
    files = [file for file in (folder / "processed").glob("*.pt") if file.stem not in NO_GRAPHS]
    return files[0] if len(files) == 1 else None


def check_no_target(target: str | Sequence[str] | None, spec: str) -> None:
    """Rejects a target for anything but a CSV.

    Raises:
        ValueError: if a target is given.
    """
    if target is not None:
        names = target if isinstance(target, str) else ", ".join(target)
        raise ValueError(
            f"target={names!r} chooses columns of a CSV, and {spec} is none: its labels are its "
            "y, all of them; leave target (--target) out, or make a store whose graphs have the "
            "labels that you want (graph.y = graph.y[:, [0]], then GraphStore.from_pyg(...))"
        )


def understood() -> str:
    """Returns the specs that :func:`staticgraph.datasets.open` accepts, one per line."""
    width = max(len(form) for form, _ in SPECS)
    lines = (f"  {form:<{width}}  {meaning}" for form, meaning in SPECS)
    return "\n".join(["Understood are:", *lines])
