"""What a device would be given, in order: one line a launch, and what each touches.

A launch is of one of five kinds: ``staticgraph`` (this library's Triton kernels, as their
``gpu.py`` launches them), ``inductor`` (kernels that Inductor wrote), ``library`` (torch's own, as
a product of cuBLAS, counted as one launch each, so that a sum of them is a least number), ``copy``
(torch's copies and fills) and ``host`` (a part on the CPU, between launches).

Bytes count each tensor that a launch is given once, at its extent: what must be moved unless a
kernel reads only some rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from staticgraph.internals.trees import tree_leaves

KINDS = ("staticgraph", "inductor", "library", "copy", "host")
COPIES = frozenset({"copy_", "fill_", "zero_", "clone", "_to_copy", "zeros", "ones", "full"})


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel given to the device."""

    part: str
    kind: str
    name: str
    nbytes: int
    flops: int


@dataclass
class CompiledGraph:
    """What Inductor said of one graph that it compiled."""

    backward: bool
    devices: dict[str, str]
    disabled: str | None
    static: frozenset[int]
    mutated: frozenset[int]
    partitions: int
    causes: list[tuple[str, str, str]]
    recorded: int = 0
    calls: int = 0

    @property
    def mutated_not_static(self) -> int:
        """Inputs that the graph writes, whose addresses may change: torch records none such."""
        return len(self.mutated - self.static)


@dataclass
class LaunchWatch:
    """What is being noted at present. One a process: patched functions find it here.

    Attributes:
        counting: note launches; off while something compiles.
        recording: refuse what a recording could not contain.
        compiles: compile this library's kernels as they are launched.
        graph: the compiled graph that runs now.
        after_forward, after_backward: which compiled graphs ran since :meth:`begin`; what runs
            outside of them belongs to the backward after the first, to the update after the second.
        live: counts storages, where given; ``moments`` is then what was live, by part and name,
            when something was launched or made.
        graphs: every compiled graph since it was emptied.
        causes: why the graph that compiles now cannot be recorded whole: (reason, operation,
            place); taken by the graph when it is done.
        skips: why torch recorded nothing of a graph, since it was emptied.
        sources: Inductor's kernels, source -> name; two graphs may use a name for two kernels.
        kernels: this library's, name -> compiled kernels.
        launches, operators: what was noted since :meth:`begin`; operators by part and name.
    """

    counting: bool = False
    recording: bool = False
    compiles: bool = False
    graph: CompiledGraph | None = None
    after_forward: bool = False
    after_backward: bool = False
    live: Any = None
    moments: list[tuple[str, str, int]] = field(default_factory=list)
    graphs: list[CompiledGraph] = field(default_factory=list)
    causes: list[tuple[str, str, str]] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    operators: Counter[tuple[str, str]] = field(default_factory=Counter)

    def begin(self) -> None:
        """Starts a count."""
        self.launches, self.operators, self.moments = [], Counter(), []
        self.after_forward = self.after_backward = False
        self.counting = True

    def end(self) -> tuple[list[Launch], Counter[tuple[str, str]]]:
        """Ends it; the launches in order, and operators by part."""
        self.counting = False
        return self.launches, self.operators

    @property
    def part(self) -> str:
        """Where in a step we are."""
        if self.graph is not None:
            return "backward" if self.graph.backward else "forward"
        if self.after_backward:
            return "optimizer"
        return "backward" if self.after_forward else "forward"

    def launch(self, kind: str, name: str, given: Any, flops: int = 0) -> None:
        """Notes one launch, and what it was given."""
        if self.counting:
            self.launches.append(Launch(self.part, kind, name, touched(given), flops))
            self._moment(name)

    def operator(self, name: str) -> None:
        """Notes one operator."""
        if self.counting:
            self.operators[self.part, name] += 1

    def inductor_kernel(self, name: str, given: Any) -> None:
        """A kernel of Inductor's is launched."""
        self.operator(f"inductor::{name}")
        self.launch("inductor", name, given)

    def own_kernel(self, function: Any, kernel: Any, given: Any) -> None:
        """A Triton kernel of this library's (or of the user's) is launched."""
        short = function.__module__.removeprefix("staticgraph.kernels.").removesuffix(".gpu")
        name = f"{short}.{function.__name__}"
        self.launch("staticgraph", name, given)
        if kernel is not None:
            self.kernels.setdefault(name, {})[kernel.hash] = kernel

    def library_kernel(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator of torch's own runs."""
        short = func.name().split("::")[1].split(".")[0]
        kind = "copy" if short in COPIES else "library"
        self.launch(kind, func.name(), (args, kwargs, out), flops(func, args, kwargs, out))

    def made(self, out: Any) -> None:
        """Counts the memory of results."""
        if self.live is not None and self.counting:
            self.live.watch(tensors(out))
            self._moment("made")

    def _moment(self, name: str) -> None:
        if self.live is not None:
            self.moments.append((self.part, name, self.live.live_bytes))


WATCH = LaunchWatch()


def tensors(value: Any) -> Iterable[Tensor]:
    """All tensors in a structure."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def touched(given: Any) -> int:
    """Bytes of all tensors, each storage once."""
    seen: dict[int, int] = {}
    for tensor in tensors(given):
        storage = tensor.untyped_storage()._cdata
        seen[storage] = max(seen.get(storage, 0), tensor.numel() * tensor.element_size())
    return sum(seen.values())


def flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Multiplications and additions of a product or of attention; 0 for anything else."""
    formula = flop_registry.get(func._overloadpacket)
    if formula is None:
        return 0
    try:
        return int(formula(*args, **{k: v for k, v in kwargs.items() if k != "out"}, out_val=out))
    except (TypeError, ValueError, AssertionError):  # a form that torch's formula does not know
        return 0


def peak_flops(dtype: torch.dtype | None, plain: float, tensor_cores: float) -> float:
    """The rate of products: tensor cores in half precision, plain float32 else (TF32 is off)."""
    return tensor_cores if dtype in (torch.bfloat16, torch.float16) else plain
