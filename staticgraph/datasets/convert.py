"""Converts any data set to a store on disk, in bounded memory and with several processes.

Problem: SMILES are parsed at some 3,000 molecules per second and core, and 100 million molecules do
not fit in memory as objects. Idea: rows are divided evenly among processes, each of which writes a
shard of a :class:`StoreWriter`; after a kill, the same call continues. A table is read in chunks,
and a store is mapped and copied in slices; anything else must be opened as a whole first, by one
process.

Invariant: the store equals, array by array, that of ``open(spec).save(folder)``, whatever the
number of processes and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import staticgraph.datasets as datasets
from staticgraph.datasets.specs import AUTO
from staticgraph.datasets.table import Table
from staticgraph.files import document
from staticgraph.files.atomic import write_bytes
from staticgraph.files.folder import require_replaceable
from staticgraph.sizes.whole_numbers import IntArray
from staticgraph.store import MANIFEST
from staticgraph.store.files import KIND
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.joined_parts import slices
from staticgraph.store.writer import PART_GRAPHS, StoreWriter, parts_folder
from staticgraph.text.progress import bar

# Next to the parts: identifies the conversion, so that another one does not continue with them.
BEGUN = "conversion.json"


@dataclass(frozen=True)
class Conversion:
    """The data set to convert, and how the work is divided.

    Attributes:
        spec: the data set.
        target: the columns of a table to predict.
        task: what the target is.
        seed: the seed of a random split.
        workers: the number of processes.
        part_graphs: graphs per part.
        graphs: graphs in total.
        name: the store's name.
        keep_order: whether edges keep the data set's order.
    """

    spec: str
    target: tuple[str, ...]
    task: str
    seed: int
    workers: int
    part_graphs: int
    graphs: int
    name: str
    keep_order: bool = False

    def share(self, worker: int) -> tuple[int, int]:
        """Returns the first graph of a worker, and that of the next worker."""
        return self.graphs * worker // self.workers, self.graphs * (worker + 1) // self.workers


def convert(
    spec: str | Path,
    folder: str | Path,
    *,
    workers: int = 1,
    merged: bool = True,
    part_graphs: int = PART_GRAPHS,
    target: str | Sequence[str] | None = None,
    task: str = AUTO,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = True,
    keep_order: bool = False,
) -> GraphStore:
    """Writes a data set as a store, and opens it.

    Args:
        spec: as for :func:`staticgraph.datasets.open`.
        folder: the target folder; until the store is finished, ``FOLDER.parts`` is next to it.
        workers: processes that read a table or copy a store; other data sets are written by one.
        merged: merge the parts into one folder; False keeps them, see :meth:`StoreWriter.finish`.
        part_graphs: graphs per part: a process holds this many, and a kill loses at most this many.
        target, task, seed: as for :func:`staticgraph.datasets.open`.
        overwrite: replace an existing store.
        progress: show a progress bar.
        keep_order: leave edges in the data set's order; see :meth:`GraphStore.from_pyg`.

    Raises:
        ChildProcessError: if a worker process was killed.
        FileExistsError: if the target must not be replaced, or there are parts of another
            conversion.
        BadGraph, UnknownDataset, MissingPackage, FileNotFoundError: as for opening the data set.
    """
    text = str(spec)
    targets = (target,) if isinstance(target, str) else tuple(target or ())
    root = Path(folder)
    require_replaceable(root.expanduser().resolve(), KIND, overwrite)  # now, not after hours
    source, graphs, splits, name = _source(text, targets, task, seed, progress)
    if isinstance(source, GraphStore):
        workers = 1  # it is in this process's memory
    workers = max(1, min(workers, -(-graphs // part_graphs)))
    job = Conversion(text, targets, task, seed, workers, part_graphs, graphs, name, keep_order)
    _begin(root, job)
    shards = [
        StoreWriter(root, shard=k, part_graphs=part_graphs, name=name, keep_order=keep_order)
        for k in range(workers)
    ]
    done = sum(writer.committed for writer in shards)
    with bar(
        desc=f"converting {name}", unit=" graphs", show=progress, total=graphs, initial=done
    ) as shown:
        if workers == 1:
            _write(job, 0, root, source, shown.update)
        else:
            _write_in_processes(job, root, source, shown.update)
    end = StoreWriter(root, name=name, overwrite=overwrite)
    return end.finish(splits, merged=merged)


Source = Table | GraphStore | None


def _source(
    spec: str, target: tuple[str, ...], task: str, seed: int, progress: bool
) -> tuple[Source, int, dict[str, IntArray], str]:
    """Returns the source, the number of graphs, the splits and the name.

    The source is a table, a store in memory, or None if each worker maps the store itself.
    """
    path = Path(spec).expanduser()
    if path.suffix == ".csv" and path.exists():
        table = Table.of(path, target, progress, task)
        splits = table.splits or datasets.random_split(table.graphs, seed)
        return table, table.graphs, splits, path.stem
    store = datasets.open(spec, target=target or None, task=task, seed=seed, progress=progress)
    mapped = (path / MANIFEST).exists() and task == AUTO
    return None if mapped else store, len(store), dict(store.splits), store.name


def _begin(folder: Path, job: Conversion) -> None:
    """Records next to the parts which conversion they belong to.

    Raises:
        FileExistsError: if they belong to another one.
    """
    parts = parts_folder(folder)
    note = parts / BEGUN
    digest = document.digest(asdict(job))
    if parts.is_dir() and any(parts.iterdir()):
        before = note.read_text().strip() if note.exists() else "of another program"
        if before != digest:
            raise FileExistsError(
                f"{parts} has parts of another conversion (other data, --workers or "
                "--part-graphs): finish that one with the command that began it, or remove the "
                "folder"
            )
        return
    parts.mkdir(parents=True, exist_ok=True)
    write_bytes(note, digest.encode())


def _stretches(job: Conversion, source: Source, first: int, last: int) -> Iterable[GraphColumns]:
    if isinstance(source, Table):
        return source.stretches(job.part_graphs, first, last)
    store = source
    if store is None:
        store = GraphStore.load(Path(job.spec).expanduser(), verify=False)
    return slices(store, job.part_graphs, first, last)


def _write(job: Conversion, worker: int, folder: Path, source: Source, tell: Any) -> None:
    """Writes one worker's share, continuing after the graphs already committed."""
    first, last = job.share(worker)
    writer = StoreWriter(
        folder,
        shard=worker,
        part_graphs=job.part_graphs,
        name=job.name,
        keep_order=job.keep_order,
    )
    for part in _stretches(job, source, first + writer.committed, last):
        writer.append_part(part)
        tell(len(part))
    writer.commit()  # marks the shard as complete


def _work(job: Conversion, worker: int, folder: Path, source: Source, to: Connection) -> None:
    """Runs a worker: sends the number of graphs of each part, then None or an exception."""
    try:
        _write(job, worker, folder, source, to.send)
        to.send(None)
    except BaseException as error:
        to.send(error)
        raise SystemExit(1) from None
    finally:
        to.close()


def _write_in_processes(job: Conversion, folder: Path, source: Source, tell: Any) -> None:
    """Writes all shares in parallel.

    An exception in one worker ends all of them; their parts stay.

    Raises:
        ChildProcessError: if a worker process was killed.
        Exception: the exception that a worker raised.
    """
    context = get_context("spawn")
    processes, ends = {}, {}
    try:
        for worker in range(job.workers):
            ends[worker], theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(job, worker, folder, source, theirs))
            process.start()
            theirs.close()
            processes[worker] = process
        waiting = {end: worker for worker, end in ends.items()}
        while waiting:
            for end in wait(list(waiting)):
                assert isinstance(end, Connection)
                message = _told(end, processes[waiting[end]], waiting[end], folder)
                if message is None:
                    del waiting[end]
                elif isinstance(message, BaseException):
                    raise message
                else:
                    tell(message)
    finally:
        for process in processes.values():
            process.terminate() if process.is_alive() else None
            process.join()
        for end in ends.values():
            end.close()


def _told(end: Connection, process: Any, worker: int, folder: Path) -> Any:
    try:
        return end.recv()
    except EOFError:
        process.join()
        raise ChildProcessError(
            f"worker {worker} was ended from outside (exit status {process.exitcode}); what was "
            f"committed stays in {parts_folder(folder)}: the same command goes on with it"
        ) from None
