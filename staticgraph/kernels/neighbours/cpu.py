"""Generates machine code for a program on a CPU.

One function per direction: over the nodes, over the edges into each node (or out of it), over the
columns of a row. The columns are unrolled into vector instructions, so nothing depends on what a
compiler finds out about loops and overlapping arrays; what depends on the node alone is computed
before the loop over its edges; a sum over edges stays in registers. Generating and compiling takes
some tens of milliseconds, and nothing is kept on disk.

Threads take nodes, as many as have the same number of edges together. No two write the same
location, and the terms of a number are added in one order, so results have the same bits on any
number of threads.
"""

# llvmlite is not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

import torch
from llvmlite import binding, ir
from torch import Tensor

from staticgraph.kernels import threads
from staticgraph.kernels.neighbours.cpu_operations import OPERATIONS, Numbers
from staticgraph.kernels.neighbours.program import Program, Result, Shape

_LONG, _SHORT, _BYTE, _NOTHING = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.VoidType()
_ARRAYS = ("src", "dst", "row_ptr", "col_ptr", "transpose")
# What a variance up to which PyG's standard deviation is zero, and has no gradient.
LEAST_VARIANCE = 1e-5
Index = tuple[int, ...]


def blocks(size: int, lanes: int) -> Iterator[tuple[int, int]]:
    """First column and length of each vector of a row: powers of two, ``lanes`` at the most."""
    at = 0
    while at < size:
        length = min(lanes, 1 << (size - at).bit_length() - 1)
        yield at, length
        at += length


class _Function:
    """Writes the loop of a program over nodes and their edges.

    Args:
        into: whether edges are those into a node, which it is the target of; otherwise those out of
            it.
    """

    def __init__(self, program: Program, into: bool, double: bool) -> None:
        self.program: Program = program
        self.into: bool = into
        self.double: bool = double
        self.real: Any = ir.DoubleType() if double else ir.FloatType()
        self.lanes: int = 8 if double else 16
        self.module: ir.Module = ir.Module(name=program.key)
        self._memo: dict[Any, Any] = {}
        self._inner: list[bool] = []
        own = "target" if into else "source"
        for operation, arguments, _, options in program.values:
            inner = any(self._inner[one] for one in arguments)
            if operation == "operand":
                inner = program.operands[options[0]].place not in (own, "all")
            if operation == "share":
                inner = not into
            self._inner.append(inner)

    # ------------------------------------------------------------------ the loops

    def write(self) -> ir.Module:
        """Writes the function ``loop(arguments, thread, threads)`` and its entry ``run``."""
        kind = ir.FunctionType(_NOTHING, [_LONG.as_pointer(), _LONG, _LONG])
        function = ir.Function(self.module, kind, "loop")
        function.linkage = "internal"
        self.entry: ir.IRBuilder = ir.IRBuilder(function.append_basic_block("entry"))
        builder = ir.IRBuilder(function.append_basic_block("start"))
        self._arguments: Any = function.args[0]
        names = ["rows", *_ARRAYS]
        self.numbers: dict[str, Any] = {n: self._argument(at) for at, n in enumerate(names)}
        first = len(names)
        count = len(self.program.operands)
        codes = 1 + max((one.code for one in self.program.operands), default=-1)
        self.operands: list[Any] = [self._argument(first + at) for at in range(count)]
        self.codes: list[Any] = [self._argument(first + count + at) for at in range(codes)]
        results = len(self.program.results)
        self.results: list[Any] = [
            self._argument(first + count + codes + at) for at in range(results)
        ]
        self.ptr: Any = self._array("row_ptr" if self.into else "col_ptr", _SHORT)
        begin = self._part(builder, function.args[1], function.args[2])
        one = _LONG(1)
        end = self._part(builder, builder.add(function.args[1], one), function.args[2])
        with _loop(builder, self.entry, begin, end) as i:
            self._node(builder, i)
        builder.ret_void()
        self.entry.branch(function.basic_blocks[1])
        self._entry_points(function)
        return self.module

    def _argument(self, place: int) -> Any:
        return self.entry.load(self.entry.gep(self._arguments, [_LONG(place)]))

    def _array(self, name: str, kind: Any) -> Any:
        return self.entry.inttoptr(self.numbers[name], kind.as_pointer())

    def _entry_points(self, function: ir.Function) -> None:
        """``run(arguments, threads)``: on torch's threads, or as a plain call."""
        m = self.module

        def outside(name: str, result: Any, *arguments: Any) -> ir.Function:
            return ir.Function(m, ir.FunctionType(result, arguments), f"staticgraph_{name}")

        work = ir.Function(m, ir.FunctionType(_NOTHING, [_BYTE.as_pointer()]), "work")
        work.linkage = "internal"
        b = ir.IRBuilder(work.append_basic_block())
        asked = [outside(f"omp_get_{n}", _SHORT) for n in ("thread_num", "num_threads")]
        given = b.bitcast(work.args[0], _LONG.as_pointer())
        b.call(function, [given, *(b.sext(b.call(one, []), _LONG) for one in asked)])
        b.ret_void()
        run = ir.Function(m, ir.FunctionType(_NOTHING, [_LONG.as_pointer(), _LONG]), "run")
        b = ir.IRBuilder(run.append_basic_block())
        parallel = outside("GOMP_parallel", _NOTHING, work.type, _BYTE.as_pointer(), _SHORT, _SHORT)
        with b.if_else(b.icmp_signed(">", run.args[1], _LONG(1))) as (many, single):
            with many:
                team = b.trunc(run.args[1], _SHORT)
                b.call(
                    parallel, [work, b.bitcast(run.args[0], _BYTE.as_pointer()), team, _SHORT(0)]
                )
            with single:
                b.call(function, [run.args[0], _LONG(0), _LONG(1)])
        b.ret_void()

    def _part(self, b: ir.IRBuilder, thread: Any, of: Any) -> Any:
        """The first node of a thread, by bisection: nodes and edges before it are its share."""
        rows = self.numbers["rows"]
        whole = b.add(rows, self._long(b, self.ptr, rows, _SHORT))
        wanted = b.sdiv(b.mul(whole, thread), of)
        low, high = self.entry.alloca(_LONG), self.entry.alloca(_LONG)
        b.store(_LONG(0), low)
        b.store(rows, high)
        head, body, done = (b.append_basic_block(name) for name in ("find", "half", "found"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(b.icmp_signed("<", b.load(low), b.load(high)), body, done)
        b.position_at_end(body)
        middle = b.sdiv(b.add(b.load(low), b.load(high)), _LONG(2))
        before = b.add(middle, self._long(b, self.ptr, middle, _SHORT))
        less = b.icmp_signed("<", before, wanted)
        b.store(b.select(less, b.add(middle, _LONG(1)), b.load(low)), low)
        b.store(b.select(less, b.load(high), middle), high)
        b.branch(head)
        b.position_at_end(done)
        return b.load(low)

    @staticmethod
    def _long(b: ir.IRBuilder, array: Any, at: Any, kind: Any) -> Any:
        value = b.load(b.gep(array, [at]))
        return b.sext(value, _LONG) if kind is _SHORT else value

    def _node(self, builder: ir.IRBuilder, i: Any) -> None:
        """One node: what depends on it alone, its edges, and its reductions."""
        values, edges = (builder.append_basic_block(name) for name in ("values", "edges"))
        self.own: Any = i
        self.begin: Any = self._long(builder, self.ptr, i, _SHORT)
        self.end: Any = self._long(builder, self.ptr, builder.add(i, _LONG(1)), _SHORT)
        sums = [
            _Sums(self, builder, number, part)
            for number, result in enumerate(self.program.results)
            for part in range(len(result.reductions))
        ]
        builder.branch(values)
        self.outer: ir.IRBuilder = ir.IRBuilder(values)
        builder.position_at_end(edges)
        with _loop(builder, self.entry, self.begin, self.end) as p:
            self.inner: ir.IRBuilder = builder
            self.first: Any = builder.icmp_signed("==", p, self.begin)
            if self.into:
                self.edge: Any = p
            else:
                self.edge = self._long(builder, self._array("transpose", _SHORT), p, _SHORT)
            ends = self._array("src" if self.into else "dst", _LONG)
            self.other: Any = self._long(builder, ends, self.edge, _LONG)
            for one in sums:
                one.add()
        for one in sums:
            one.finish()
        self.outer.branch(edges)

    # ------------------------------------------------------------------ values

    def numbers_at(self, place: int) -> Numbers:
        """Writes where a value is computed: for each edge, or for the node before its edges."""
        return Numbers(self.inner if self._inner[place] else self.outer, self.double)

    def vector(self, place: int, index: Index, lanes: int) -> Any:
        """The numbers of a value from ``index`` on, ``lanes`` in the last dimension."""
        key = place, index, lanes
        if key not in self._memo:
            self._memo[key] = self._vector(place, index, lanes)
        return self._memo[key]

    def _vector(self, place: int, index: Index, lanes: int) -> Any:
        operation, arguments, shape, options = self.program.values[place]
        n = self.numbers_at(place)
        if operation in OPERATIONS:
            given = [self._broadcast(n, one, index, lanes) for one in arguments]
            return OPERATIONS[operation](n, *given)
        if operation == "number":
            kind = self.real if lanes == 1 else ir.VectorType(self.real, lanes)
            return ir.Constant(kind, options[0] if lanes == 1 else [options[0]] * lanes)
        if operation == "share":
            return self._share(n.builder)
        if operation == "operand":
            row = self._row(options[0])
            return self.load(n.builder, row, _flat(index, shape), lanes)
        if operation == "expand":
            return self._broadcast(n, arguments[0], index, lanes)
        if operation == "total":
            return self._total(n, place, index, lanes)
        pieces = list(self._pieces(place, index, lanes))
        if len(pieces) == 1:
            return self.vector(*pieces[0])
        return self._side_by_side(n.builder, [self.vector(*piece) for piece in pieces])

    def _pieces(self, place: int, index: Index, lanes: int) -> Iterator[tuple[int, Index, int]]:
        """Where the numbers of a value that only moves numbers come from, in runs as long as they
        are next to each other."""
        operation, arguments, shape, options = self.program.values[place]
        at = 0
        while at < lanes:
            here = (*index[:-1], index[-1] + at) if index else index
            left = lanes - at
            source, below = arguments[0], self.program.values[arguments[0]].shape
            if operation == "view":
                there = _unflat(_flat(here, shape), below)
                run = below[-1] - there[-1] if below else 1
            elif operation == "slice":
                dim, first, _ = options
                there = (*here[:dim], here[dim] + first, *here[dim + 1 :])
                run = left
            elif operation == "permute":
                there = tuple(here[options.index(dim)] for dim in range(len(options)))
                run = left if options[-1] == len(options) - 1 else 1
            else:  # cat
                dim, place = options[0], here[options[0]]
                sizes = iter([(one, self.program.values[one].shape[dim]) for one in arguments])
                source, size = next(sizes)
                while place >= size:
                    place -= size
                    source, size = next(sizes)
                there = (*here[:dim], place, *here[dim + 1 :])
                run = size - place if dim == len(shape) - 1 else left
            run = min(left, 1 << max(run, 1).bit_length() - 1)
            run = min(run, 1 << left.bit_length() - 1)
            yield source, there, run
            at += run

    def _broadcast(self, n: Numbers, place: int, index: Index, lanes: int) -> Any:
        """The numbers of an argument that broadcasts to the shape that ``index`` is of."""
        shape = self.program.values[place].shape
        there = tuple(
            0 if size == 1 else at
            for size, at in zip(shape, index[len(index) - len(shape) :], strict=True)
        )
        if lanes > 1 and (not shape or shape[-1] == 1):
            return _spread(n.builder, self.vector(place, there, 1), lanes)
        return self.vector(place, there, lanes)

    def _total(self, n: Numbers, place: int, index: Index, lanes: int) -> Any:
        """A sum over dimensions, in vectors along the last one that is left, or along the last one
        of all if that is summed."""
        _, (below,), _, dims = self.program.values[place]
        shape = self.program.values[below].shape
        last = len(shape) - 1
        if last in dims and lanes > 1:
            numbers = [
                self.vector(place, (*index[:-1], index[-1] + lane), 1) for lane in range(lanes)
            ]
            return self._side_by_side(n.builder, numbers)
        left = iter(index)
        ranges: list[Sequence[int]] = []
        for dim, size in enumerate(shape):
            ranges.append(range(size) if dim in dims else (next(left),))
        if last not in dims:
            return self._added(n, below, [(at, lanes) for at in product(*ranges)])
        parts: dict[int, list[tuple[Index, int]]] = {}
        for at in product(*ranges[:-1]):
            for first, length in blocks(shape[-1], self.lanes):
                parts.setdefault(length, []).append(((*at, first), length))
        value = None
        for at in parts.values():
            one = _joined(n.builder, self._added(n, below, at))
            value = one if value is None else n.builder.fadd(value, one)
        return value

    def _added(self, n: Numbers, place: int, at: list[tuple[Index, int]]) -> Any:
        """The sum of vectors of a value; products are fused with it."""
        operation, arguments, _, _ = self.program.values[place]
        value = None
        for index, lanes in at:
            if operation == "mul" and value is not None:
                first, second = (self._broadcast(n, a, index, lanes) for a in arguments)
                value = n.fma(first, second, value)
            else:
                one = self.vector(place, index, lanes)
                value = one if value is None else n.builder.fadd(value, one)
        return value

    def _share(self, b: ir.IRBuilder) -> Any:
        """One over the number of edges into the target."""
        count = None
        if self.into:
            count = b.sub(self.end, self.begin)
        else:
            ptr = self._array("row_ptr", _SHORT)
            begin, end = (
                self._long(b, ptr, at, _SHORT) for at in (self.other, b.add(self.other, _LONG(1)))
            )
            count = b.sub(end, begin)
        return _inverse(b, count, self.real)

    def _row(self, number: int) -> Any:
        """The address of an operand's row."""
        key = "row", number
        if key not in self._memo:
            place, shape, code = self.program.operands[number]
            own = "target" if self.into else "source"
            b = self.outer if place in (own, "all") else self.inner
            at: Any = _LONG(0)
            if place in ("source", "target"):
                at = self.own if place == own else self.other
            elif place == "edge":
                at = self.edge
            elif place == "table":
                codes = self.entry.inttoptr(self.codes[code], _LONG.as_pointer())
                at = self._long(b, codes, self.edge, _LONG)
            base = self.entry.inttoptr(self.operands[number], self.real.as_pointer())
            self._memo[key] = b.gep(base, [b.mul(at, _LONG(math.prod(shape)))], inbounds=True)
        return self._memo[key]

    def load(self, b: ir.IRBuilder, row: Any, at: int, lanes: int) -> Any:
        """Loads numbers of a row."""
        place = b.gep(row, [_LONG(at)], inbounds=True)
        if lanes > 1:
            place = b.bitcast(place, ir.VectorType(self.real, lanes).as_pointer())
        return b.load(place, align=8 if self.double else 4)

    def store(self, b: ir.IRBuilder, value: Any, row: Any, at: int) -> None:
        """Stores numbers of a row of a result."""
        place = b.gep(row, [_LONG(at)], inbounds=True)
        if isinstance(value.type, ir.VectorType):
            place = b.bitcast(place, value.type.as_pointer())
        b.store(value, place, align=8 if self.double else 4)

    def _side_by_side(self, b: ir.IRBuilder, parts: Sequence[Any]) -> Any:
        lanes = sum(_count(part) for part in parts)
        value, at = ir.Constant(ir.VectorType(self.real, lanes), ir.Undefined), 0
        for part in parts:
            for lane in range(_count(part)):
                one = part if _count(part) == 1 else b.extract_element(part, _SHORT(lane))
                value = b.insert_element(value, one, _SHORT(at))
                at += 1
        return value


class _Sums:
    """One reduction of a node: its running values, in registers."""

    def __init__(self, function: _Function, builder: ir.IRBuilder, number: int, part: int) -> None:
        self.f: _Function = function
        result = function.program.results[number]
        self.value: int = result.value
        self.reduction: str = result.reductions[part]
        self.shape: Shape = function.program.values[self.value].shape
        self.whole: Shape = function.program.shape(result)
        self.size: int = math.prod(self.whole)
        self.first: int = part * self.shape[-1] if self.shape else 0
        self.builder: ir.IRBuilder = builder
        self.base: Any = function.entry.inttoptr(
            function.results[number], function.real.as_pointer()
        )
        width = self.shape[-1] if self.shape else 1
        leading = product(*map(range, self.shape[:-1]))
        self.blocks: list[tuple[Index, int]] = [
            ((*at, first) if self.shape else (), length)
            for at in leading
            for first, length in blocks(width, function.lanes)
        ]
        self.scatters: bool = self.reduction == "source_sum" and function.into
        count = {"rows": 0, "var": 3, "std": 3, "min_ties": 2, "max_ties": 2}
        self.running: list[list[Any]] = [
            [self._fresh(lanes, n) for n in range(count.get(self.reduction, 1))]
            for _, lanes in ([] if self.scatters else self.blocks)
        ]

    def _fresh(self, lanes: int, number: int) -> Any:
        kind = self.f.real if lanes == 1 else ir.VectorType(self.f.real, lanes)
        place = self.f.entry.alloca(kind)
        start = 0.0
        if number == 0 and self.reduction[:3] in ("min", "max"):
            start = math.inf if self.reduction.startswith("min") else -math.inf
        self.builder.store(ir.Constant(kind, start if lanes == 1 else [start] * lanes), place)
        return place

    def add(self) -> None:
        """Adds an edge."""
        f, b = self.f, self.f.inner
        if self.reduction == "rows" or self.scatters:
            at = f.other if self.scatters else f.edge
            row = b.gep(self.base, [b.mul(at, _LONG(self.size))], inbounds=True)
            for index, lanes in self.blocks:
                value, place = f.vector(self.value, index, lanes), self._place(index)
                if self.scatters:
                    value = b.fadd(f.load(b, row, place, lanes), value)
                f.store(b, value, row, place)
            return
        for (index, lanes), places in zip(self.blocks, self.running, strict=True):
            value = f.vector(self.value, index, lanes)
            old = [b.load(place) for place in places]
            for place, new in zip(places, self._next(b, value, old), strict=True):
                b.store(new, place)

    def _next(self, b: ir.IRBuilder, value: Any, old: list[Any]) -> list[Any]:
        if self.reduction in ("sum", "mean", "source_sum"):
            return [b.fadd(old[0], value)]
        n = Numbers(b, self.f.double)
        if self.reduction[:3] in ("min", "max"):
            pair = (value, old[0]) if self.reduction.startswith("min") else (old[0], value)
            better = n.less(*pair)
            takes = b.or_(better, b.fcmp_unordered("uno", value, value))
            best = b.select(takes, value, old[0])
            if len(old) == 1:
                return [best]
            one, zero = n.constant(value, 1.0), n.constant(value, 0.0)
            equal = b.select(b.fcmp_ordered("==", value, old[0]), one, zero)
            return [best, b.select(better, one, b.fadd(old[1], equal))]
        first = b.select(_spread(b, self.f.first, _count(value)), value, old[0])
        gap = b.fsub(value, first)
        return [first, b.fadd(old[1], gap), n.fma(gap, gap, old[2])]

    def finish(self) -> None:
        """Stores the result of the node."""
        if self.reduction == "rows" or self.scatters:
            return
        f, b = self.f, self.builder
        row = b.gep(self.base, [b.mul(f.own, _LONG(self.size))], inbounds=True)
        count = b.sub(f.end, f.begin)
        share = _inverse(b, count, f.real)
        empty = b.icmp_signed("==", count, _LONG(0))
        for (index, lanes), places in zip(self.blocks, self.running, strict=True):
            found = [b.load(place) for place in places]
            value = self._last(b, found, _spread(b, share, lanes), _spread(b, empty, lanes))
            f.store(b, value, row, self._place(index))

    def _place(self, index: Index) -> int:
        """Where the numbers from ``index`` on are in a row of the result."""
        return _flat(index, self.whole) + self.first

    def _last(self, b: ir.IRBuilder, found: list[Any], share: Any, empty: Any) -> Any:
        n = Numbers(b, self.f.double)
        zero = n.constant(found[0], 0.0)
        if self.reduction in ("min", "max"):
            return b.select(empty, zero, found[0])
        if self.reduction in ("min_ties", "max_ties"):
            one = n.constant(zero, 1.0)
            best = b.select(empty, zero, found[0])
            return b.fadd(found[1], b.select(b.fcmp_ordered("==", best, zero), one, zero))
        if self.reduction == "mean":
            return b.fmul(found[0], share)
        if self.reduction in ("var", "std"):
            gap = b.fmul(found[1], share)
            value = n.fma(b.fneg(gap), gap, b.fmul(found[2], share))
            if self.reduction == "var":
                return value
            root = OPERATIONS["sqrt"](n, value)
            small = b.fcmp_ordered("<=", value, n.constant(value, LEAST_VARIANCE))
            return b.select(small, zero, root)
        return found[0]


@contextmanager
def _loop(b: ir.IRBuilder, entry: ir.IRBuilder, begin: Any, end: Any) -> Iterator[Any]:
    """Writes a loop over numbers; afterwards the builder is behind it."""
    at = entry.alloca(_LONG)
    b.store(begin, at)
    head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
    b.branch(head)
    b.position_at_end(head)
    index = b.load(at)
    b.cbranch(b.icmp_signed("<", index, end), body, done)
    b.position_at_end(body)
    yield index
    b.store(b.add(index, _LONG(1)), at)
    b.branch(head)
    b.position_at_end(done)


def _flat(index: Index, shape: Shape) -> int:
    at = 0
    for place, size in zip(index, shape, strict=True):
        at = at * size + place
    return at


def _unflat(at: int, shape: Shape) -> Index:
    index: list[int] = []
    for size in reversed(shape):
        at, place = divmod(at, size)
        index.append(place)
    return tuple(reversed(index))


def _count(value: Any) -> int:
    return value.type.count if isinstance(value.type, ir.VectorType) else 1


def _spread(b: ir.IRBuilder, value: Any, lanes: int) -> Any:
    """A number in all lanes of a vector."""
    if lanes == 1:
        return value
    kind = ir.VectorType(value.type, lanes)
    nothing = ir.Constant(kind, ir.Undefined)
    if isinstance(value, ir.Constant):
        return ir.Constant(kind, [value.constant] * lanes)
    one = b.insert_element(nothing, value, _SHORT(0))
    return b.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(_SHORT, lanes), [0] * lanes))


def _joined(b: ir.IRBuilder, value: Any) -> Any:
    """The sum of all lanes: halves are added until one is left."""
    count = _count(value)
    if count == 1:
        return value
    while count > 1:
        count //= 2
        halves = (
            ir.Constant(ir.VectorType(_SHORT, count), list(range(first, first + count)))
            for first in (0, count)
        )
        low, high = (b.shuffle_vector(value, value, half) for half in halves)
        value = b.fadd(low, high)
    return b.extract_element(value, _SHORT(0))


def _inverse(b: ir.IRBuilder, count: Any, real: Any) -> Any:
    """One over a count, one for none."""
    least = b.select(b.icmp_signed("<", count, _LONG(1)), _LONG(1), count)
    return b.fdiv(ir.Constant(real, 1.0), b.sitofp(least, real))


# ---------------------------------------------------------------------- compiling and calling


@lru_cache(maxsize=1)
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


def _compiled(program: Program, into: bool, double: bool) -> Callable[[Any, int], None]:
    """The compiled function of a program: it takes an array of int64, and a number of threads."""
    machine, engine = _compiler()
    module = binding.parse_assembly(str(_Function(program, into, double).write()))
    module.verify()
    options = binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine.add_module(module)
    engine.finalize_object()
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
        engine.get_function_address("run")
    )


def parts(program: Program, alone: bool) -> list[tuple[bool, list[Result]]]:
    """The loops of a program, each over the edges into a node or out of it, and their results.

    One thread alone adds to the rows of sources as it goes over the edges into each node, in the
    order in which several threads add up the edges out of each.
    """
    out = [one for one in program.results if one.reduction == "source_sum"]
    rows = [one for one in program.results if one.reduction == "rows"]
    into = [one for one in program.results if one not in (*out, *rows)]
    if not out or (alone and (into or rows)):
        return [(True, list(program.results))]
    return [(True, into + rows), (False, out)] if into else [(False, out + rows)]


class _Loop(NamedTuple):
    """One loop of a program, over edges into a node or out of it; the places of its results."""

    into: bool
    places: tuple[int, ...]
    function: Callable[[Any, int], None]


@cache
def _loops(program: Program, double: bool, alone: bool) -> list[_Loop]:
    return [
        _Loop(
            into,
            tuple(map(program.results.index, some)),
            _compiled(program.taking(some), into, double),
        )
        for into, some in parts(program, alone)
    ]


def run(
    program: Program,
    operands: Sequence[Tensor],
    codes: Sequence[Tensor],
    edges: Sequence[Tensor],
    results: Sequence[Tensor],
) -> None:
    """Runs a program over contiguous tensors of one dtype, float32 or float64.

    Args:
        edges: as in :class:`staticgraph.kernels.edges.Edges`.
        results: are written to.
    """
    given = [one.data_ptr() for one in (*edges, *operands, *codes)]
    team = torch.get_num_threads() if threads.AVAILABLE else 1
    if team > 1 and sum(one.numel() for one in (*operands, *results)) < threads.SMALL:
        team = 1
    double = operands[0].dtype is torch.float64
    for into, places, function in _loops(program, double, team == 1):
        rows = edges[2 if into else 3].size(0) - 1
        numbers = [rows, *given, *(results[place].data_ptr() for place in places)]
        for place in places if into else ():
            if program.results[place].reduction == "source_sum":
                results[place].zero_()
        function((ctypes.c_int64 * len(numbers))(*numbers), team)
