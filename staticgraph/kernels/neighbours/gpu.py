"""``neighbours`` on CUDA: a Triton kernel per loop of a program, whose text is written for it.

Triton reads the lines of a kernel where Python keeps those of files; its own cache knows the kernel
by its text in later processes, too.

The derivative of a minimum or maximum finds the edges that have it by computing their values again,
so these must have the same bits in both kernels: products are not fused with sums there, and a sum
over columns, whose order depends on the tile, is refused.
"""

# Launching a Triton function, with its options by name, is not typed.
# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from staticgraph.kernels.edges import Edges
from staticgraph.kernels.launch import warps, wide
from staticgraph.kernels.neighbours.cpu import parts
from staticgraph.kernels.neighbours.gpu_loop import Text, kernel_text
from staticgraph.kernels.neighbours.op import empty_results
from staticgraph.kernels.neighbours.program import Program, Result, program_of
from staticgraph.kernels.shapes import contiguous

# Warps among which the edges of a node are shared out; more would cut a row of 300 columns smaller
# than a thread's load of 128 bits.
MOST_WARPS = 4
_HEAD = "import triton\nimport triton.language as tl\n\n\n"


class _Loop(NamedTuple):
    """One loop of a program.

    Attributes:
        kernel: a Triton function.
        arguments: their names, the dtype left out.
        into: whether it is over the edges into each node.
        options: how many edges it takes at once, and Triton's.
    """

    kernel: Any
    arguments: tuple[str, ...]
    into: bool
    options: dict[str, Any]


@cache
def _texts(
    program: Program, ordered: bool = False, square: bool = True
) -> tuple[tuple[bool, Text], ...]:
    """The text of each loop; its results are numbered as those of the program."""
    texts: list[tuple[bool, Text]] = []
    if _compares_totals(program):
        raise NotImplementedError(
            "the minimum or maximum over edges of a sum over columns (the operation 'total')"
        )
    for into, some in parts(program, False, square):
        text = kernel_text(program.taking(some), into, ordered)
        names = {
            f"result_{number}": program.results.index(result) for number, result in enumerate(some)
        }
        arguments = tuple(
            f"result_{names[argument]}" if argument in names else argument
            for argument in text.arguments
        )
        texts.append((into, text._replace(arguments=arguments)))
    return tuple(texts)


def _compares(result: Result) -> bool:
    return any(how[:3] in ("min", "max") for how in result.reductions)


def _compares_totals(program: Program) -> bool:
    """Whether a minimum or maximum is of values that depend on a sum over columns."""
    needed = {result.value for result in program.results if _compares(result)}
    for place in reversed(range(len(program.values))):
        if place in needed:
            needed.update(program.values[place].arguments)
    return any(program.values[place].operation == "total" for place in needed)


def supports(program: Program) -> str | None:
    """Why a program cannot run on CUDA; None if it can."""
    try:
        _texts(program)
    except NotImplementedError as error:
        return str(error)
    return None


@cache
def _loops(program: Program, ordered: bool, square: bool) -> tuple[_Loop, ...]:
    same_bits = any(map(_compares, program.results)) or any(
        value.operation == "eq" for value in program.values
    )
    loops: list[_Loop] = []
    for into, text in _texts(program, ordered, square):
        options = {
            "LANES": text.lanes,
            "num_warps": warps(text.tile),
            "enable_fp_fusion": not same_bits,
        }
        loops.append(_Loop(_kernel(text, into), text.arguments, into, options))
    return tuple(loops)


def _kernel(text: Text, into: bool) -> Any:
    """The Triton function of a text."""
    key = hashlib.sha256(text.source.encode()).hexdigest()[:16]
    name = f"neighbours_{'into' if into else 'out_of'}_{key}"
    source, file = _HEAD + text.source.replace("NAME", name), f"<{name}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    return scope[name]


def forward(
    key: str, operands: Sequence[Tensor], codes: Sequence[Tensor], edges: Sequence[Tensor]
) -> list[Tensor]:
    """Runs a program without tables, in one launch per loop."""
    results = empty_results(key, operands, codes, edges)
    values: dict[str, Tensor] = dict(zip(Edges._fields, contiguous(*edges), strict=False))
    for kind, tensors in (("operand", contiguous(*operands)), ("result", results)):
        values |= {f"{kind}_{number}": tensor for number, tensor in enumerate(tensors)}
    dtype = wide(results[0].dtype)
    square = values["row_ptr"].shape == values["col_ptr"].shape
    for loop in _loops(program_of(key), "order" in values, square):
        nodes = values["row_ptr" if loop.into else "col_ptr"].size(0) - 1
        arguments = [values[name] for name in loop.arguments]
        options = _add_warps(loop.options, values["src"].size(0), nodes)
        loop.kernel[(nodes,)](*arguments, dtype, **options)
    return results


def _add_warps(options: dict[str, Any], edges: int, nodes: int) -> dict[str, Any]:
    """Adds warps, each of which takes as many edges, until they take those of an average node."""
    lanes, num_warps = options["LANES"], options["num_warps"]
    while num_warps < MOST_WARPS and lanes * nodes < edges:
        lanes, num_warps = 2 * lanes, 2 * num_warps
    return options | {"LANES": lanes, "num_warps": num_warps}
