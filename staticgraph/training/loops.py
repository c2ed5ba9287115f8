"""The compiled loops of a training run on a CPU, with the types of their arguments.

The types must be listed, since otherwise they are known only when a loop is called, which is too
late: see :mod:`staticgraph.training.compile_ahead`. Each line is a loop and its arguments in
NumPy's type codes: ``f4[2]`` is a C-contiguous two-dimensional array of float32, ``i8[1]A`` one
that need not be contiguous, a following ``r`` means read-only, ``i8`` is a scalar, ``2xf8`` a tuple
of two, and ``i8*3`` three arguments of the same type. After ``|`` are the models that call the
loop, unless all do: a run does not compile the loops of other models. The loops that take longest
to compile come first.

``tests/test_compile_ahead.py`` trains every model that uses fused kernels. If a run calls other
loops, it fails and prints the lines to add or remove.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import groupby
from typing import Any

import numpy as np
from numba import from_dtype, types

from staticgraph.training.compile_ahead import Loop
from staticgraph.training.config import KERNELS_GAIN

LOOPS = """\
packing.exact._repair i8[1] i8[2] i8[1] 2xf8 u8
kernels.batch_norm.cpu.backward f4 9xi8 i8*3 f8 b1 i8
kernels.batch_norm.cpu.forward f4 12xi8 i8*3 f8 b1*4 f8 i8
kernels.neighbour_attention.cpu.backward f4[3]*3 f4[2]*2 f4[3] f4[2]*2 i8[1] i4[1] f8 b1 \
f4[3]*2 f4[2]*2 | gat
kernels.neighbour_attention.cpu.forward f4[3]*2 f4[2]*2 i8[1] i4[1] f8 b1 f4[3] f4[2]*2 | gat
store.columns._counting_sort i8[1]*5
packing.stream.stream_kernel i8[2] i8[1]*2 i8*2
batches.collation.collate._structure i8[1]*3 u1[1]*2 i8[2] i8[1]*3 b1[1]*3 b1*2
kernels.table_sum.cpu.forward i8[2] i8[1] f4[2]*2 i8
kernels.neighbour_sum.cpu_backward.relu_add_backward f4 13xi8 9xi8 f8 b1 i8 | gine gps
kernels.neighbour_sum.cpu_backward.copy_backward f4 13xi8 9xi8 f8 b1 i8 | gin sage
batches.collation.collate._structure i8[1]*5 i8[2] i8[1]*3 b1[1]*3 b1*2
batches.collation.collate._pointers i8[1]*3 i4[1] i8[1] i8[2] i4[1]*3
batches.collation.collate._pointers i8[1]*3 i4[1] u1[1] i8[2] i4[1]*3
batches.collation.collate._pointers i8[1]*3 i4[1] i2[1] i8[2] i4[1]*3
batches.collation.collate._copy_rows i8[1]*2 i8 u1[1] i8[1]
kernels.segments.cpu.sum_forward f4[2] i8[1] b1 f4[2]
kernels.gcn_sum.cpu.backward f4 8xi8 i8*3 b1*2 i8 | gcn
batches.collation.collate._copy_rows i8[1]*2 i8 u1[1]*2
batches.collation.collate._pad u1[1] i8*4
kernels.head_blocks.cpu.to_rows f4[4] i8[1] i8 f4[2] | gps
kernels.graph_attention.cpu._on_threads f4[4] i4[1] i8*2 f8 f4[3] f4[2] i8 | gps
kernels.graph_attention.cpu_backward.backward f4[4]*2 f4[2] i4[1] i8*2 f8 f4[4] i8 | gps
kernels.linear.cpu.forward f4 5xi8 3xi8 b1*2 i8
kernels.linear.cpu.input_gradient f4 3xi8*2 i8
kernels.linear.cpu.weight_gradient f4 4xi8 3xi8 i8
kernels.head_products.cpu.backward f4[3]*5 | gat
kernels.head_products.cpu.forward f4[2] f4[3]*2 | gat
kernels.table_sum.cpu.backward f4[2] i8[2] i8[1] f4[2] i8
kernels.gcn_sum.cpu.forward f4 8xi8 i8*3 b1*3 i8 | gcn
packing.place.group_by_pack i8[1] i8
kernels.neighbour_sum.cpu.copy f4 7xi8*2 f8 b1 i8 | gin sage
kernels.neighbour_sum.cpu.relu_add f4 7xi8*2 f8 b1 i8 | gine gps
packing.place.place_batches i8[2] i8[1]*2 i8[2]
batches.slots.real_counts._totals i8[1]*3
kernels.head_blocks.cpu.to_block f4[2] i8 i8[1] f4[4] | gps
kernels.table_sum.cpu.codes i8[2] i8[1]*2 | gine gps
kernels.segments.cpu.sum_backward f4[2] i8[1] b1 f4[2]
packing.random.shuffle i8[1] u8
kernels.gcn_sum.cpu.degrees i8[1] i4[1] f4[1] f8 b1 f4[1]*2 | gcn
"""
WORD = re.compile(r"([a-z]\d+)(?:\[(\d)\](A?)(r?))?|(\d+)x([a-z]\d+)")


def type_of(word: str) -> Any:
    """The numba type for a word of a line.

    Raises:
        ValueError: the word is not a type.
    """
    found = WORD.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is not a type of a loop's argument")
    letters, dimensions, strided, readonly, times, of = found.groups()
    if times:
        return types.UniTuple(from_dtype(np.dtype(of)), int(times))
    scalar = from_dtype(np.dtype(letters))
    if not dimensions:
        return scalar
    return types.Array(scalar, int(dimensions), "A" if strided else "C", bool(readonly))


def word_of(kind: Any) -> str:
    """The word for a numba type; the inverse of :func:`type_of`.

    Raises:
        ValueError: there is no word for the type.
    """
    if isinstance(kind, types.UniTuple):
        return f"{kind.count}x{word_of(kind.dtype)}"
    if isinstance(kind, types.Array) and kind.layout in "AC" and kind.aligned:
        strided, readonly = "A" * (kind.layout == "A"), "r" * (not kind.mutable)
        return f"{word_of(kind.dtype)}[{kind.ndim}]{strided}{readonly}"
    if isinstance(kind, types.Boolean):
        return "b1"
    if isinstance(kind, types.Integer | types.Float):
        number: Any = kind
        sign = "f" if isinstance(kind, types.Float) else "i" if number.signed else "u"
        return f"{sign}{number.bitwidth // 8}"
    raise ValueError(f"a loop takes a {kind}, for which there is no word")


def line_of(loop: Loop, models: Collection[str] = ()) -> str:
    """The line for a loop in :data:`LOOPS`, with its models unless they are all or none."""
    words = [loop.name.removeprefix("staticgraph.")]
    for word, same in groupby(map(word_of, loop.types)):
        times = len(list(same))
        words.append(f"{word}*{times}" if times > 1 else word)
    if models and KERNELS_GAIN - set(models):
        words += ["|", *sorted(models)]
    return " ".join(words)


def training_loops(model: str | None = None) -> list[Loop]:
    """The loops of the list that a run of a model calls.

    Args:
        model: one of :data:`KERNELS_GAIN`; for any other model the calls are not known, so all
            loops are returned.
    """
    found = []
    for line in LOOPS.strip().splitlines():
        call, _, models = line.partition("|")
        if models and model in KERNELS_GAIN and model not in models.split():
            continue
        name, *words = call.split()
        kinds: list[Any] = []
        for word in words:
            kind, _, times = word.partition("*")
            kinds += [type_of(kind)] * int(times or 1)
        found.append(Loop(f"staticgraph.{name}", tuple(kinds)))
    return found
