"""Runs programs on a CPU: each loop is written, compiled and called by its address.

Writing and compiling a loop takes about 0.1 s. The machine code is kept in the user's cache folder,
under the names of the program, of the processor and of the code that wrote it; what nothing has
read for :data:`DAYS` is removed.

Threads take nodes, as many as have the same number of edges together. No two write the same
location, and the terms of a number are added in one order, so results have the same bits on any
number of threads.
"""

# llvmlite is not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import llvmlite
import torch
from llvmlite import binding
from torch import Tensor

from staticgraph.files import atomic, own_cache
from staticgraph.kernels import threads
from staticgraph.kernels.edges import Edges
from staticgraph.kernels.neighbours.cpu_code import Function
from staticgraph.kernels.neighbours.program import Program, Result
from staticgraph.kernels.table_sum.pieces import ADDED_TO_AN_ENTRY, PIECES

# Days for which machine code is kept that nothing reads.
DAYS = 90
_WRITERS = ("cpu_code.py", "cpu_operations.py", "cpu_reductions.py", "cpu_vectors.py")
_COMPILING = Lock()


@cache
def _compiler() -> tuple[Any, Any]:
    """The target machine, and an engine that keeps what it compiled."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_default_triple()
    features = binding.get_host_cpu_features().flatten()
    machine = target.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    return machine, engine


def _compiled(
    program: Program, into: bool, double: bool, ordered: bool
) -> Callable[[Any, int], None]:
    """The compiled function of a program: it takes an array of int64, and a number of threads."""
    written = Function(program, into, double, ordered)
    with _COMPILING:
        machine, engine = _compiler()
        code = binding.ObjectFileRef.from_data(_machine_code(written, machine))
        engine.add_object_file(code)
        engine.finalize_object()
        address = engine.get_function_address(written.name)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)


def _machine_code(written: Function, machine: Any) -> bytes:
    """The object file of a function, from the cache or compiled."""
    folder = _folder()
    path = None if folder is None else folder / f"{written.name}.o"
    if path is not None:
        with suppress(OSError, own_cache.NotOurs), path.open("rb") as file:
            own_cache.require_own(file, path)
            with suppress(OSError):
                os.utime(path)
            return file.read()
    module = binding.parse_assembly(str(written.write()))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    code = machine.emit_object(module)
    if path is not None:
        with suppress(OSError):
            atomic.write_bytes(path, code)
    return code


@cache
def _folder() -> Path | None:
    """Where machine code is kept; None if there is no folder that this user alone can write."""
    try:
        root = own_cache.folder() / "programs"
    except own_cache.NotOurs:
        return None
    here = Path(__file__).parent
    names = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    parts = [*names, llvmlite.__version__]
    parts += [(here / name).read_text() for name in _WRITERS]
    folder = root / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in root.glob("*/*.o"):
            if time.time() - path.stat().st_mtime > DAYS * 86_400:
                path.unlink(missing_ok=True)
    except OSError:
        return None
    return folder


def parts(program: Program, alone: bool, square: bool) -> list[tuple[bool, list[Result]]]:
    """The loops of a program, each over the edges into a node or out of it, and their results.

    One thread alone adds to the rows of sources as it goes over the edges into each node, in the
    order in which several threads add up the edges out of each.

    Args:
        program: any.
        alone: whether one thread runs it, over nodes of one kind.
        square: whether there are as many sources as targets.
    """
    out = [result for result in program.results if result.reduction == "source_sum"]
    either = [result for result in program.results if _in_any_order(program, result, square)]
    into = [result for result in program.results if result not in (*out, *either)]
    if not out or (into and alone):
        return [(True, list(program.results))]
    return [(True, into + either), (False, out)] if into else [(False, out + either)]


def _in_any_order(program: Program, result: Result, square: bool) -> bool:
    """Whether a result may be made in a loop over the edges out of nodes as well as into them."""
    value = program.values[result.value]
    nothing = result.reduction == "sum" and value.operation == "number" and not value.options[0]
    return (nothing and square) or result.reduction in ("rows", "table_sum")


class _Loop(NamedTuple):
    """One loop of a program, over edges into a node or out of it.

    Attributes:
        into: which of them.
        places: of its results.
        zeroed: those of them that edges add to, and that start from zero.
        tables: those of them that are gradients of tables.
        function: takes the address of its arguments, and a number of threads.
    """

    into: bool
    places: tuple[int, ...]
    zeroed: tuple[int, ...]
    tables: tuple[int, ...]
    function: Callable[[Any, int], None]


@cache
def _loops(program: Program, double: bool, alone: bool, square: bool, ordered: bool) -> list[_Loop]:
    loops: list[_Loop] = []
    for into, some in parts(program, alone, square):
        scattered = [
            number
            for number, result in enumerate(some)
            if into and result[1:3] == ("source_sum", -1)
        ]
        tables = tuple(number for number, result in enumerate(some) if result.table >= 0)
        places = tuple(map(program.results.index, some))
        function = _compiled(program.taking(some), into, double, ordered)
        loops.append(_Loop(into, places, tuple(scattered), tables, function))
    return loops


def run(
    program: Program,
    operands: Sequence[Tensor],
    codes: Sequence[Tensor],
    edges: Sequence[Tensor],
    results: Sequence[Tensor],
) -> None:
    """Runs a program over contiguous tensors of one dtype, float32 or float64.

    Args:
        edges: the arrays of :class:`staticgraph.kernels.edges.Edges`.
        results: are written to.
    """
    addresses = [tensor.data_ptr() for tensor in (*edges, *operands, *codes)]
    team = torch.get_num_threads() if threads.AVAILABLE else 1
    if team > 1 and sum(tensor.numel() for tensor in (*operands, *results)) < threads.SMALL:
        team = 1
    square = edges[2].size(0) == edges[3].size(0)
    kind = operands[0].dtype, team == 1 and square, square, len(edges) == len(Edges._fields)
    loops = program.cache.get(kind)
    if loops is None:
        loops = program.cache[kind] = _loops(program, kind[0] is torch.float64, *kind[1:])
    for loop in loops:
        pieces, outs = team, [results[place] for place in loop.places]
        for number in loop.zeroed:
            outs[number].zero_()
        if loop.tables:
            pieces = min(_pieces(edges[0].size(0), outs[table].size(0)) for table in loop.tables)
        for number in loop.tables:
            outs[number] = outs[number].new_zeros(pieces, *outs[number].shape)
        nodes = edges[2 if loop.into else 3].size(0) - 1
        sizes = [out.numel() // pieces for out in outs] if loop.tables else [0] * len(outs)
        arguments = array(
            "q", [nodes, pieces, *addresses, *(out.data_ptr() for out in outs), *sizes]
        )
        loop.function(arguments.buffer_info()[0], min(team, pieces))
        for number in loop.tables:
            torch.sum(outs[number], 0, out=results[loop.places[number]])


def _pieces(edges: int, entries: int) -> int:
    """How many tables the gradient of a table is summed in, each over a part of the edges; by sizes
    alone, so that it does not depend on the number of threads."""
    return max(1, min(PIECES, edges // (ADDED_TO_AN_ENTRY * max(1, entries))))
