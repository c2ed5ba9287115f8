"""``staticgraph train-large``: trains on one graph whose partitions are buffered in memory."""

from __future__ import annotations

import copy
import math
import shutil
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from staticgraph.cli.refusals import UsageError, require_graph
from staticgraph.errors import Diverged
from staticgraph.files.document import read, save_json, to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import Status, say, waiting
from staticgraph.text.table import table
from staticgraph.training.options import (
    BYTES,
    OUTPUT_FOLDER,
    RATE,
    SHARE,
    WHOLE,
    WIDTH,
    WORDS,
    Seed,
    choice,
    read_fanouts,
    value,
)

# The default partitions and buffer: those of the published comparison.
SIZES = {"in-memory": (1, 1), "comet": (32, 8), "beta": (16, 4)}
SIZES |= {"node-cache": (16, 8), "dispersed": (16, 8)}
# The policies of each task, the default first.
POLICIES = {
    "link": ("comet", "beta", "in-memory"),
    "node": ("dispersed", "node-cache", "in-memory"),
}
# The contents of a run's folder; ORIGIN says what the graph was cut from.
GRAPH, EMBEDDINGS, REPORT, PICTURE = "graph", "embeddings", "report.json", "schedule.png"
ORIGIN = "graph-origin.json"
BUFFER, TRAINING, LINKS, NODES = (
    Parameter(group=Group.create_ordered(name)) for name in ("buffer", "training", "links", "nodes")
)
LAYER = choice("sage", "gcn", "gat")


@Parameter(name="*")
@dataclass(frozen=True)
class LargeOptions:
    """The options of training on one large graph.

    Attributes:
        data: fb15k-237, cora, citeseer, cornell5, a .npz file, or a folder of staticgraph partition
            (links).
        task: predict missing links, or the labels of nodes; node if it is left out and the data has
            labels, else link.
        policy: comet and beta for links, node-cache and dispersed for nodes; comet for links and
            dispersed for nodes if it is left out.
        partitions: partitions on disk; if it is left out, 32 for comet, 1 for in-memory, else 16.
        buffer: partitions in memory at once; if it is left out, 4 for beta, 1 for in-memory, else
            8.
        memory: choose both for this much memory, such as 512M (comet).
        epochs: passes over the edges or training nodes; 10 for links, 50 for nodes if it is left
            out.
        batch_size: edges or training nodes per batch; 1000 edges or 64 nodes if it is left out.
        rate: learning rate; 0.1 for links, 0.01 for nodes if it is left out.
        seed: seed of weights, order and samples.
        fanouts: neighbours sampled, one number per layer, from the seeds on.
        decoder: scoring function of a link.
        dimension: size of an embedding.
        chunks: parts of a batch that share negatives; 10, or 1 with an encoder, if it is left out.
        negatives: negative samples per chunk and side.
        encoder: layers over sampled neighbourhoods; none if it is left out.
        model: layers over sampled neighbourhoods.
        hidden: width of every layer.
        dropout: dropout between layers.
        out: the run's folder.
        overwrite: replace the run in --out.
    """

    data: Annotated[str, WORDS, Parameter(metavar="SPEC")]
    task: Annotated[str | None, choice("link", "node")] = None
    policy: Annotated[str | None, choice(*SIZES), BUFFER] = None
    partitions: Annotated[int | None, WHOLE, BUFFER, Parameter(metavar="P")] = None
    buffer: Annotated[int | None, WHOLE, BUFFER, Parameter(metavar="C")] = None
    memory: Annotated[int | None, BYTES, BUFFER] = None
    epochs: Annotated[int | None, WHOLE, TRAINING] = None
    batch_size: Annotated[int | None, WHOLE, TRAINING] = None
    rate: Annotated[float | None, RATE, TRAINING] = None
    seed: Annotated[Seed, TRAINING] = 0
    fanouts: Annotated[
        tuple[int, ...],
        value(read_fanouts, metavar="K,K"),
        TRAINING,
        Parameter(show_default="10,10"),
    ] = (10, 10)
    decoder: Annotated[str, choice("distmult", "complex", "transe"), LINKS] = "distmult"
    dimension: Annotated[int, WIDTH, LINKS] = 50
    chunks: Annotated[int | None, WHOLE, LINKS] = None
    negatives: Annotated[int, WHOLE, LINKS] = 500
    encoder: Annotated[str | None, LAYER, LINKS] = None
    model: Annotated[str, LAYER, NODES] = "sage"
    hidden: Annotated[int, WIDTH, NODES] = 64
    dropout: Annotated[float, SHARE, NODES] = 0.5
    out: Annotated[Path, OUTPUT_FOLDER] = Path("runs/large")
    overwrite: bool = False


def run(*, options: LargeOptions, json: bool = False) -> None:
    """Train on one graph whose partitions lie on disk.

    For example:
      staticgraph train-large --data fb15k-237
      staticgraph train-large --task link --data fb15k-237 --policy beta --partitions 16 --buffer 4
      staticgraph train-large --task link --data fb15k-237 --encoder sage --fanouts 10 --epochs 3
      staticgraph train-large --data cora --model gcn

    The folder gets the partitions, the embeddings (links), report.json and schedule.png, which
    shows what was resident when and how long training waited. Ctrl-C stops a run on links between
    two states of the buffer, one on nodes after the present epoch. The same command again continues
    a run on links after its last epoch, also one that was killed. A run on nodes is not resumed: it
    uses the partitions that are there, and trains from the first epoch.

    Args:
        options: the options.
        json: print the report as JSON.
    """
    task = options.task
    if task is None:
        require_graph(options.data)
        from staticgraph.outofcore.disk import data

        task = "node" if data.has_labels(options.data) else "link"
    name = options.policy or POLICIES[task][0]
    if name not in POLICIES[task]:
        raise UsageError(f"--task {task} takes --policy {', '.join(POLICIES[task])}")
    if options.memory is not None and (task, name) != ("link", "comet"):
        raise UsageError("--memory chooses for --policy comet")
    require_graph(options.data)
    from staticgraph.files.folder_lock import folder_lock
    from staticgraph.outofcore.disk import data
    from staticgraph.training import plots

    links = task == "link"
    with folder_lock(options.out):
        if options.overwrite:
            _remove_run(options.out)
        with waiting(f"opening {options.data}"):
            opened = (data.open_links if links else data.open_nodes)(options.data)
        policy, partitions = _policy(options, name, opened)
        train = _train_links if links else _train_nodes
        results, rows, times, diverged = train(options, policy, partitions, opened)
        if times:
            plots.save_picture(options.out / PICTURE, plots.draw_schedule, times, partitions)
        report = {
            "task": task, "data": opened.name, "policy": str(policy), "partitions": partitions,
            **results, "diverged": diverged.epoch if diverged else None,
        }  # fmt: skip
        save_json(options.out / REPORT, report)
    layers = f"{options.encoder}, {options.decoder}" if options.encoder else options.decoder
    resident = f"{how_many(policy.slots(partitions), 'partition')} of {partitions} in memory"
    title = f"{opened.name}, {name}, {resident}, {layers if links else options.model}"
    if diverged is not None:
        rows = {"diverged": f"in epoch {diverged.epoch}", **rows}
    text = table((title, "filtered test" if links else ""), rows.items())
    print(to_json(report) if json else text)
    if diverged is not None:
        raise diverged


# What only runs of a task report, the rows of their table, the times of the buffer's states, and
# the divergence if there was one.
Result = tuple[dict[str, Any], dict[str, str], Any, Diverged | None]


def _policy(options: LargeOptions, name: str, opened: Any) -> tuple[Any, int]:
    """The replacement policy of a name, and the number of partitions."""
    from staticgraph import outofcore

    partitions, buffer = options.partitions or SIZES[name][0], options.buffer or SIZES[name][1]
    logical = None
    if options.memory is not None:
        edges = opened.train.shape[1]
        tuned = outofcore.tune(opened.num_nodes, edges, 8 * options.dimension, 12, options.memory)
        partitions, buffer = tuned.partitions, max(2, tuned.buffer)
        logical = None if tuned.in_memory else tuned.logical
    policies = {
        "in-memory": outofcore.InMemory,
        "beta": partial(outofcore.Beta, buffer),
        "comet": partial(outofcore.Comet, buffer, logical),
        "node-cache": partial(outofcore.NodeCache, buffer, near=buffer),
        "dispersed": partial(outofcore.Dispersed, buffer),
    }
    return policies[name](), partitions


def _train_links(options: LargeOptions, policy: Any, partitions: int, triples: Any) -> Result:
    """Trains embeddings, optionally with a graph network on top, and ranks.

    A run that diverged has no score; to get the score of the epoch before, use ``--epochs``."""
    from staticgraph.outofcore import LinkConfig, LinkTrainer, evaluate_links
    from staticgraph.training.job import Interrupt, Interrupted

    config = LinkConfig(
        decoder=options.decoder, dimension=options.dimension, negatives=options.negatives,
        batch_size=options.batch_size or 1000, rate=options.rate or 0.1, seed=options.seed,
        chunks=options.chunks or (1 if options.encoder else 10),
    )  # fmt: skip
    graph = _graph(options, triples.train, triples.num_nodes, partitions)
    encoder, width = None, options.dimension
    if options.encoder:
        heads = math.gcd(4, width)  # of attention, which must divide the width
        encoder = _layers(options, options.encoder, (width, width, width), heads=heads)
    fanouts = options.fanouts if encoder else ()
    trainer = LinkTrainer(
        graph, policy, config, options.out / EMBEDDINGS, encoder=encoder, fanouts=fanouts
    )
    status, interrupt = Status(), Interrupt()

    def show_state(state: int, of: int) -> None:
        """Shows which of the epoch's buffer states is being trained; stops before it if asked."""
        if interrupt.requested:
            raise Interrupted(
                f"stopped in epoch {trainer.epoch + 1}; the same command continues after "
                f"{how_many(trainer.epoch, 'epoch')}"
            )
        status.show(f"epoch {trainer.epoch + 1}: state {state + 1} of {of}")

    diverged = score = None
    rows: dict[str, str] = {}
    try:
        with interrupt:
            while trainer.epoch < (options.epochs or 10):
                epoch = trainer.train_epoch(show_state)
                status.clear()
                _say_epoch(epoch, f"bias {epoch.bias:.3f}  {how_many(epoch.states, 'state')}")
    except Diverged as error:
        diverged = error
    finally:
        status.clear()
    if diverged is None:
        with waiting("ranking the test edges"):
            score = evaluate_links(trainer, triples.test, triples.known)
        rows = {"MRR": f"{score.mrr:.4f}"}
        rows |= {f"Hits@{k}": f"{share:.4f}" for k, share in score.hits.items()}
        if score.not_finite:
            diverged = Diverged(
                f"the training diverged by epoch {trainer.epoch}: {score.not_finite} of "
                f"{2 * score.edges} tested ends have a score that is not finite. Train again with "
                "a lower --rate",
                trainer.epoch,
            )
    report = {
        "encoder": options.encoder, "fanouts": fanouts or None,
        "config": asdict(config), "epochs": [asdict(epoch) for epoch in trainer.history],
        "test": asdict(score) if score else None,
    }  # fmt: skip
    trainer.close()
    return report, rows, trainer.buffer.times, diverged


def _layers(options: LargeOptions, name: str, sizes: tuple[int, int, int], **more: Any) -> Any:
    """A :class:`staticgraph.outofcore.SampledGNN` with a layer for each fan-out, with the weights
    of the seed; ``sizes`` are the columns of its input, of its layers and of its output."""
    import torch

    from staticgraph.outofcore import SampledGNN

    torch.manual_seed(options.seed)
    return SampledGNN(name, *sizes, len(options.fanouts), **more)


def _train_nodes(options: LargeOptions, policy: Any, partitions: int, nodes: Any) -> Result:
    """Trains a graph network on sampled neighbourhoods, and tests the weights of the best
    validation accuracy; a run that diverged is not tested."""
    import numpy as np

    from staticgraph.outofcore import NodeTrainer, SampledLoader
    from staticgraph.training.job import Interrupt

    fanouts, cache = list(options.fanouts), options.policy == "node-cache"
    if (options.out / GRAPH / "manifest.json").exists():
        say(
            f"{options.out} has the partitions of an earlier run, which are used again; its model "
            "was not kept, and training begins at the first epoch (runs on links are resumed, on "
            "nodes not)"
        )
    graph = _graph(
        options, nodes.edges, len(nodes.labels), partitions, features=nodes.features,
        training_nodes=nodes.train if cache else None, near=len(fanouts) if cache else 0,
    )  # fmt: skip
    loader = SampledLoader(
        graph, policy, fanouts, options.batch_size or 64, seeds=nodes.train, labels=nodes.labels,
        seed=options.seed, gcn_norm=options.model == "gcn",
    )  # fmt: skip
    sizes = nodes.features.shape[1], options.hidden, int(nodes.labels.max()) + 1
    model = _layers(options, options.model, sizes, dropout=options.dropout)
    trainer = NodeTrainer(model, loader, rate=options.rate or 0.01)
    records: list[dict[str, Any]] = []
    diverged = best = accuracy = None
    best_weights = model.state_dict()

    def score(part: Any) -> float:
        """The accuracy on some nodes, over whole neighbourhoods."""
        with waiting("evaluating on whole neighbourhoods"):
            return trainer.evaluate_whole(part, nodes.labels)

    try:
        with Interrupt() as interrupt:
            while len(records) < (options.epochs or 50) and not interrupt.requested:
                record = trainer.train_epoch()
                valid = score(nodes.valid)
                if best is None or valid > best:
                    best, best_weights = valid, copy.deepcopy(model.state_dict())
                records.append({**asdict(record), "valid": valid})
                _say_epoch(record, f"train {record.accuracy:.3f}  valid {valid:.3f}")
    except Diverged as error:
        diverged = error
    model.load_state_dict(best_weights)
    rows = {} if best is None else {"best validation accuracy": f"{best:.4f}"}
    if diverged is None:
        accuracy = score(nodes.test)
        rows["test accuracy"] = f"{accuracy:.4f}"
    statistics = loader.statistics
    loader.close()
    rows |= {
        "batches per shape, smallest first": ", ".join(map(str, statistics.batches)),
        "batches split": f"{statistics.splits}",
        "rows that are real": f"{statistics.efficiency:.1%}",
    }
    report = {
        "model": options.model, "fanouts": fanouts, "seed": options.seed, "epochs": records,
        "valid_accuracy": best, "test_accuracy": accuracy,
        "majority": float(np.bincount(nodes.labels[nodes.test]).max() / len(nodes.test)),
    }  # fmt: skip
    return report, rows, loader.states.times, diverged


def _say_epoch(epoch: Any, results: str) -> None:
    say(
        f"epoch {epoch.epoch:3}  loss {epoch.loss:.4f}  {results}  "
        f"{how_many(epoch.partitions_read, 'read')}  {epoch.seconds:.2f} s  "
        f"waited {epoch.waited_s:.2f} s"
    )


def _graph(
    options: LargeOptions, edges: Any, num_nodes: int, p: int, near: int = 0, **more: Any
) -> Any:
    """Opens the partitioned graph of the run, and creates it if it does not exist.

    Raises:
        ValueError: the folder of the run has a different graph.
    """
    from staticgraph.files.checksum import crc32_of_array
    from staticgraph.outofcore import PartitionedGraph, partition

    folder, origin = options.out / GRAPH, options.out / ORIGIN
    request = {
        "num_nodes": num_nodes, "num_edges": edges.shape[1], "num_partitions": p,
        "seed": options.seed, "near": near,
    }  # fmt: skip
    for name, array in {"edges": edges, **more}.items():
        if array is not None:
            request[f"crc32 of {name}"] = crc32_of_array(array)
    if not (folder / "manifest.json").exists():
        save_json(origin, request)
        with waiting(f"cutting the graph into {how_many(p, 'partition')}"):
            return partition(edges, num_nodes, p, folder, seed=options.seed, near=near, **more)
    graph = PartitionedGraph(folder)
    made_of = read(origin) if origin.exists() else {}  # earlier versions did not write it
    for name, needed in request.items():
        existing = getattr(graph.manifest, name, made_of.get(name, needed))
        if existing != needed:
            raise ValueError(
                f"{folder} has {name}={existing}, and these options need {needed}: choose another "
                "--out, or --overwrite"
            )
    return graph


def _remove_run(folder: Path) -> None:
    """Removes the files of an earlier run, and nothing else."""
    from staticgraph.files.folder import require_replaceable
    from staticgraph.outofcore.disk import manifest
    from staticgraph.outofcore.disk.embeddings import require_only

    parts, files = (EMBEDDINGS, GRAPH), (REPORT, PICTURE, ORIGIN)
    foreign = any(p.name not in (*parts, *files) and p.name[0] != "." for p in folder.iterdir())
    if foreign and not manifest.KIND.is_that_of(folder / GRAPH):
        raise UsageError(f"{folder} is not a run; choose another --out")
    require_replaceable(folder / GRAPH, manifest.KIND, True)
    require_only(folder / EMBEDDINGS)
    for name in parts:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in files:
        (folder / name).unlink(missing_ok=True)
