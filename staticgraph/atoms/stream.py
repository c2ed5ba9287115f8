"""Systems that leave and enter: as soon as one is finished, another takes its place in the batch.

Relaxations and simulations end at different times. A fixed batch waits for its slowest system, and
more and more of it is padding; here a batch stays full, in the same shape. (Serving systems for
language models call this in-flight, or continuous, batching: Yu et al. 2022, Orca, OSDI.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from staticgraph.atoms.neighbours import NeighbourSearch
from staticgraph.atoms.structures import counts_within
from staticgraph.batches.batch.own_class import unpad
from staticgraph.errors import GraphTooLarge
from staticgraph.nn.context.search_room import SearchRoom
from staticgraph.runner.own_batches import as_static
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.sizes.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Finished:
    """A system that left.

    Attributes:
        number: its place in the order given, from 0.
        system: the graph as the last step left it.
        steps: how many times the model ran on it.
        error: why it left before it was finished; None if it was.
    """

    number: int
    system: Any
    steps: int
    error: Exception | None = None


@dataclass(slots=True)
class _Running:
    number: int
    system: Any
    steps: int = 0


@dataclass(eq=False)
class Stream:
    """Iterates over systems as they finish; see :func:`stream`.

    Attributes:
        rounds: how many batches ran so far.
        atoms: real atoms in them.
        rows: physical rows of atoms in them.
        growths: how often room for edges was made.
    """

    runner: StaticGraphRunner
    systems: Iterator[Any]
    step: Callable[[Any, Any], bool]
    lookahead: int
    max_steps: int | None
    rounds: int = 0
    atoms: int = 0
    rows: int = 0
    growths: int = 0
    _waiting: list[_Running] = field(default_factory=list)
    _running: list[_Running] = field(default_factory=list)
    _seen: int = 0

    @property
    def share(self) -> float:
        """The share of real atoms among the rows of all batches so far."""
        return self.atoms / self.rows if self.rows else 0.0

    def __iter__(self) -> Iterator[Finished]:
        capacity = max(self.runner.plan.capacities, key=lambda each: each.nodes)
        while True:
            counts = self._seen
            yield from self._enter(capacity)
            if not self._running:
                if self._seen == counts:
                    return
                continue
            outputs = self._outputs([each.system for each in self._running])
            self.rounds += 1
            self.atoms += sum(each.system.num_nodes for each in self._running)
            staying = []
            for each, output in zip(self._running, outputs, strict=True):
                each.steps += 1
                finished = self._advanced(each, output)
                if finished is None:
                    staying.append(each)
                else:
                    yield finished
            self._running = staying

    def _advanced(self, each: _Running, output: Any) -> Finished | None:
        """Lets a system take its step; what it becomes if it leaves."""
        if not _is_finite(output):
            what = ArithmeticError(f"system {each.number}: the model's output is not finite")
            return Finished(each.number, each.system, each.steps, what)
        try:
            done = self.step(each.system, output)
        except Exception as error:
            return Finished(each.number, each.system, each.steps, error)
        if done:
            return Finished(each.number, each.system, each.steps)
        if each.steps == self.max_steps:
            what = RuntimeError(f"system {each.number} is not finished after {each.steps} steps")
            return Finished(each.number, each.system, each.steps, what)
        return None

    def _enter(self, capacity: Capacity) -> Iterator[Finished]:
        """Lets systems enter that fit beside those that run: the largest first, of those that wait.
        Yields those that no bucket takes."""
        for system in islice(self.systems, self.lookahead - len(self._waiting)):
            self._waiting.append(_Running(self._seen, system))
            self._seen += 1
        sizes = [_size(each.system) for each in self._running]
        sums = [sum(column) for column in zip(*sizes, strict=True)] if sizes else [0, 0, 0]
        limits = (capacity.node_limit, capacity.edge_limit, capacity.graph_limit)
        widest = min(limits[0], capacity.max_graph_nodes)
        for each in sorted(self._waiting, key=lambda each: -each.system.num_nodes):
            size = _size(each.system)
            if size[0] > widest or size[1] > limits[1]:
                self._waiting.remove(each)
                why = GraphTooLarge(
                    f"system {each.number} has {size[0]} nodes and {size[1]} edges, and the "
                    f"runner's largest bucket takes {widest} and {limits[1]}: plan with larger "
                    "buckets"
                )
                yield Finished(each.number, each.system, 0, why)
                continue
            after = [a + b for a, b in zip(sums, size, strict=True)]
            if all(a <= b for a, b in zip(after, limits, strict=True)):
                sums = after
                self._running.append(each)
                self._waiting.remove(each)

    def _outputs(self, systems: list[Any]) -> list[Any]:
        """The model's output for each system, after making room for edges where there was none."""
        while True:
            batch = as_static(self.runner, systems)
            out = unpad(self.runner.predict_batch(batch), batch)
            outputs = [_take_rows(out, number) for number in range(len(systems))]
            if all(_is_finite(each) for each in outputs) or not make_room(self.runner, systems):
                self.rows += batch.capacity.nodes
                return outputs
            self.growths += 1


def stream(
    runner: StaticGraphRunner,
    systems: Iterable[Any],
    step: Callable[[Any, Any], bool],
    lookahead: int = 64,
    max_steps: int | None = None,
) -> Stream:
    """Runs systems until each is finished, in batches that stay full.

    Args:
        runner: its largest bucket is the batch; smaller ones take what is left at the end.
        systems: graphs, as ``runner.predict`` takes them; read as room is made.
        step: called with a system and its rows of the model's output (a tensor, or a dict or tuple
            of tensors). Changes the system in place, and returns whether it is finished.
        lookahead: how many systems wait at the door; the largest of them that fits enters first.
        max_steps: after so many steps a system leaves, with an error; None lets it run until it is
            finished.

    Returns:
        What yields a :class:`Finished` for every system, in the order in which they finish, and
        counts the share of real atoms. A system that fits no bucket, whose output is not finite,
        whose step raises, or that takes too many steps, leaves alone, with the error.
    """
    return Stream(runner, iter(systems), step, lookahead, max_steps)


def make_room(runner: StaticGraphRunner, graphs: Sequence[Any]) -> bool:
    """Makes room for the edges of some graphs in every search of a model; whether any had less. The
    runner compiles and records its buckets again."""
    grown = False
    for layer in runner.model.modules():
        if not isinstance(layer, NeighbourSearch | SearchRoom):
            continue
        counts = counts_within(graphs, layer.cutoff)
        needed = max(edges / atoms for atoms, edges, _ in counts)
        if isinstance(layer, NeighbourSearch):
            needed /= layer.per_atom
        else:
            of_edges = max(triplets / max(edges, 1) for _, edges, triplets in counts)
            needed = max(needed / layer.per_node, of_edges / layer.per_edge)
        if needed > 1:
            layer.grow(max(1.25, 1.1 * needed))
            grown = True
    if grown:
        runner.close()
    return grown


def _size(system: Any) -> tuple[int, int, int]:
    return system.num_nodes, system.num_edges or 0, 1


def _take_rows(out: Any, number: int) -> Any:
    """The rows of one system in what ``predict`` returns."""
    if isinstance(out, Mapping):
        return {name: _take_rows(value, number) for name, value in out.items()}
    if isinstance(out, tuple):
        return tuple(_take_rows(value, number) for value in out)
    return out[number]


def _is_finite(output: Any) -> bool:
    if isinstance(output, Mapping):
        return all(_is_finite(value) for value in output.values())
    if isinstance(output, tuple):
        return all(_is_finite(value) for value in output)
    return not isinstance(output, Tensor) or bool(torch.isfinite(output).all())
