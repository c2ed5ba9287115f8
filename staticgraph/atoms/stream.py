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
from staticgraph.atoms.structures import sizes_within
from staticgraph.errors import GraphTooLarge
from staticgraph.runner.runner import StaticGraphRunner


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
        while self._enter(capacity):
            outputs = self._outputs([each.system for each in self._running])
            self.rounds += 1
            self.atoms += sum(each.system.num_nodes for each in self._running)
            self.rows += capacity.nodes
            staying = []
            for each, output in zip(self._running, outputs, strict=True):
                each.steps += 1
                left = self._advanced(each, output)
                if left is None:
                    staying.append(each)
                else:
                    yield left
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
        return Finished(each.number, each.system, each.steps) if done else None

    def _enter(self, capacity: Any) -> bool:
        """Lets systems enter that fit beside those that run: the largest first, of those that wait.

        Raises:
            GraphTooLarge: a system is larger than the bucket.
        """
        arriving = islice(self.systems, self.lookahead - len(self._waiting))
        for system in arriving:
            self._waiting.append(_Running(self._seen, system))
            self._seen += 1
        sizes = [_size(each.system) for each in self._running]
        sums = [sum(column) for column in zip(*sizes, strict=True)] if sizes else [0, 0, 0]
        limits = (capacity.node_limit, capacity.edge_limit, capacity.graph_limit)
        for each in sorted(self._waiting, key=lambda each: -each.system.num_nodes):
            size = _size(each.system)
            widest = capacity.max_graph_nodes
            if any(a > b for a, b in zip(size, limits, strict=True)) or size[0] > widest:
                raise GraphTooLarge(
                    f"system {each.number} has {size[0]} nodes and {size[1]} edges, and the "
                    f"runner's largest bucket takes {min(limits[0], widest)} and {limits[1]}: plan "
                    "with larger buckets"
                )
            after = [a + b for a, b in zip(sums, size, strict=True)]
            if all(a <= b for a, b in zip(after, limits, strict=True)):
                sums = after
                self._running.append(each)
                self._waiting.remove(each)
        return bool(self._running)

    def _outputs(self, systems: list[Any]) -> list[Any]:
        """The model's output for each system, after making room for edges where there was none."""
        while True:
            out = self.runner.predict(systems)
            outputs = [_of(out, number) for number in range(len(systems))]
            if all(_is_finite(each) for each in outputs) or not make_room(self.runner, systems):
                return outputs
            self.growths += 1


def stream(
    runner: StaticGraphRunner,
    systems: Iterable[Any],
    step: Callable[[Any, Any], bool],
    lookahead: int = 64,
) -> Stream:
    """Runs systems until each is finished, in batches that stay full.

    Args:
        runner: its largest bucket is the batch.
        systems: graphs, as ``runner.predict`` takes them; read as room is made.
        step: called with a system and its rows of the model's output (a tensor, or a dict or tuple
            of tensors). Changes the system in place, and returns whether it is finished.
        lookahead: how many systems wait at the door; the largest of them that fits enters first.

    Returns:
        What yields a :class:`Finished` for every system, in the order in which they finish, and
        counts the share of real atoms. A system whose output is not finite, or whose step raises,
        leaves alone, with the error.

    Raises (while iterating):
        GraphTooLarge: a system fits no bucket.
    """
    return Stream(runner, iter(systems), step, lookahead)


def make_room(runner: StaticGraphRunner, graphs: Sequence[Any]) -> bool:
    """Makes room for the edges of some graphs in every :class:`NeighbourSearch` of a model;
    whether any had less. The runner compiles and records its buckets again."""
    grown = False
    for layer in runner.model.modules():
        if isinstance(layer, NeighbourSearch):
            sizes = sizes_within(graphs, layer.cutoff)
            needed = max(edges / atoms for atoms, edges in sizes)
            if needed > layer.per_atom:
                layer.grow(max(1.25, 1.1 * needed / layer.per_atom))
                grown = True
    if grown:
        runner.close()
    return grown


def _size(system: Any) -> tuple[int, int, int]:
    return system.num_nodes, system.num_edges or 0, 1


def _of(out: Any, number: int) -> Any:
    """The rows of one system in what ``predict`` returns."""
    if isinstance(out, Mapping):
        return {name: _of(value, number) for name, value in out.items()}
    if isinstance(out, tuple):
        return tuple(_of(value, number) for value in out)
    return out[number]


def _is_finite(output: Any) -> bool:
    if isinstance(output, Mapping):
        return all(_is_finite(value) for value in output.values())
    if isinstance(output, tuple):
        return all(_is_finite(value) for value in output)
    return not isinstance(output, Tensor) or bool(torch.isfinite(output).all())
