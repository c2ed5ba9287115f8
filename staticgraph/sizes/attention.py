"""Choosing the path of a bucket's attention among the nodes of each graph: arithmetic only.

There are two. ``dense`` lays the nodes out in one block ``[G, M]`` and costs ``G * M * M`` entries
even if a single molecule of 222 nodes is among a hundred of 25. ``kernel`` is this library's own
operator (:mod:`staticgraph.kernels.graph_attention`), which computes the pairs of nodes within each
graph, in one launch per direction on CUDA and in one loop on a CPU. It is taken wherever it can
run, except on a CPU for large graphs of similar size, where torch's products are faster.

Both the layers (:mod:`staticgraph.nn.attention.paths`) and the reports use this module. It uses
plain numbers, since :func:`attention_path` is traced with the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from staticgraph.errors import NotStatic
from staticgraph.sizes.capacity import Capacity
from staticgraph.text.how_many import how_many

PATHS = ("auto", "dense", "kernel")
# Rows and columns of a tile of the CUDA kernel: a molecule is one tile or a few; sixteen is the
# minimum of the matrix unit. Wide heads leave registers for no more.
KERNEL_TILE, KERNEL_LEAST_TILE = 32, 16
KERNEL_WIDE_HEAD = 64
# The most columns of a head that the CUDA kernel keeps in registers together with its sums.
KERNEL_MOST_HEAD = 128
KERNEL_DTYPES = ("float16", "bfloat16", "float32")
# On a CPU the kernel keeps one row of weights at a time, and torch's products of whole blocks are
# 1.3 to 1.6 times as fast for each entry, forward and backward (64 to 2,000 nodes, 4 heads of 16
# columns, one thread, AMD EPYC, 2026-11-24). Graphs of fewer nodes than this have one path at all
# capacities, so that memory is one sum.
CPU_WIDEST, CPU_SLOWER = 512, 1.3


class AttentionSetting(NamedTuple):
    """Where attention runs and with which options, as far as that rules out the kernel.

    Attributes:
        device: ``cuda`` or ``cpu``.
        dtype: of queries, keys and values, such as ``float32``.
        head: columns of one head; 0 where unknown.
        dropout: of the attention weights, 0 outside training.
        extra_keys: what gives each graph keys that are not nodes, in words; or empty.
    """

    device: str = "cpu"
    dtype: str = "float32"
    head: int = 0
    dropout: float = 0.0
    extra_keys: str = ""

    @property
    def forbids_kernel(self) -> str:
        """Why the kernel is impossible here, in words; empty where it is possible."""
        if self.extra_keys:
            return f"{self.extra_keys}, which belong to no node"
        if self.dropout >= 1:
            return "it drops some of the weights, and this layer all of them"
        if self.device == "cuda" and self.dtype not in KERNEL_DTYPES:
            return f"no CUDA kernel for {self.dtype}"
        if self.device == "cuda" and self.head > KERNEL_MOST_HEAD:
            return f"heads of {how_many(self.head, 'column')}, more than {KERNEL_MOST_HEAD}"
        return ""


class AttentionPath(NamedTuple):
    """The path of a bucket's attention, and why.

    Attributes:
        name: ``dense`` or ``kernel``.
        reason: in words.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """The path of layers in one bucket, as reports hold it.

    Attributes:
        bucket: its number.
        layers: the layers' names in the model.
        path: ``dense`` or ``kernel``.
        reason: in words.
    """

    bucket: int
    layers: tuple[str, ...]
    path: str
    reason: str

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AttentionRow:
        """Rebuilds a row from what ``dataclasses.asdict`` returned, also after JSON."""
        return cls(values["bucket"], tuple(values["layers"]), values["path"], values["reason"])

    def __str__(self) -> str:
        more = len(self.layers) - 1
        layers = self.layers[0] + (f" and {more} more" if more else "")
        return f"attention in bucket {self.bucket} ({layers}): {self.path}, {self.reason}"


def attention_path(
    capacity: Capacity, requested: str = "auto", setting: AttentionSetting | None = None
) -> AttentionPath:
    """Chooses the path of a bucket's attention.

    Args:
        capacity: the bucket.
        requested: one of :data:`PATHS`.
        setting: where it runs.

    Raises:
        NotStatic: the kernel was requested and is impossible there.
        ValueError: an unknown name.
    """
    name, reason = chosen_path(capacity, requested, setting or AttentionSetting())
    if reason:
        return AttentionPath(name, reason)
    dense, pairs = _entries(capacity)
    entries = f"at most {pairs:,} pairs of nodes, {dense:,} entries in a block"
    similar = "auto, graphs of similar size; " if name == "dense" else "auto; "
    return AttentionPath(name, similar + entries)


def _entries(capacity: Capacity) -> tuple[int, int]:
    """Entries of a dense block, and most pairs of nodes of one graph."""
    largest = capacity.max_graph_nodes
    return capacity.graphs * largest**2, capacity.node_limit * largest


def chosen_path(capacity: Capacity, requested: str, setting: AttentionSetting) -> tuple[str, str]:
    """The name of :func:`attention_path` and its reason, ``""`` if the sizes decided; sizes may be
    symbols of a trace. Raises as :func:`attention_path`."""
    check_path(requested)
    if requested == "dense":
        return "dense", "as asked"
    forbidden = setting.forbids_kernel
    if requested == "kernel":
        if forbidden:
            raise NotStatic(
                f"attention='kernel' is impossible here: {forbidden}. Choose 'auto' or 'dense'"
            )
        return "kernel", "as asked"
    if forbidden:
        return "dense", f"the kernel was ruled out: {forbidden}"
    dense, pairs = _entries(capacity)
    wide = setting.device == "cpu" and capacity.max_graph_nodes > CPU_WIDEST
    return ("dense" if wide and dense <= CPU_SLOWER * pairs else "kernel"), ""


def check_path(path: str) -> None:
    """Checks the name of an attention path.

    Raises:
        ValueError: unknown path.
    """
    if path not in PATHS:
        raise ValueError(f"attention={path!r}; choose one of {', '.join(PATHS)}")


def kernel_tile(longest: int, head: int) -> int:
    """Rows of a tile of the CUDA kernel, for the longest graph and the columns of a head."""
    small = longest <= KERNEL_LEAST_TILE or head > KERNEL_WIDE_HEAD
    return KERNEL_LEAST_TILE if small else KERNEL_TILE
