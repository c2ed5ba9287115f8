"""Writes a program as loops in LLVM's language, for a CPU.

One function per direction: over the nodes, over the edges into each node (or out of it), over the
columns of a row. The columns are unrolled into vector instructions, so nothing depends on what a
compiler finds out about loops and overlapping arrays; what depends on the node alone is computed
before the loop over its edges; a sum over edges stays in registers.
"""

# llvmlite is not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from llvmlite import ir

from staticgraph.kernels.neighbours.cpu_operations import OPERATIONS, Numbers
from staticgraph.kernels.neighbours.cpu_reductions import Rows, Softmax, reductions
from staticgraph.kernels.neighbours.cpu_vectors import (
    BYTE,
    LONG,
    NOTHING,
    SHORT,
    Index,
    columns,
    count,
    flat,
    inverse,
    joined,
    lane,
    loop,
    spread,
    unflat,
)
from staticgraph.kernels.neighbours.program import Program

_ARRAYS = ("src", "dst", "row_ptr", "col_ptr", "transpose", "order")


class Function:
    """Writes the loop of a program over nodes and their edges.

    Args:
        into: whether edges are those into a node, which it is the target of; otherwise those out of
            it.
        ordered: whether there is an array of the order of edges by destination.
    """

    def __init__(self, program: Program, into: bool, double: bool, ordered: bool) -> None:
        self.program: Program = program
        self.into: bool = into
        self.ordered: bool = ordered
        self.double: bool = double
        self.real: Any = ir.DoubleType() if double else ir.FloatType()
        self.lanes: int = 8 if double else 16
        loop = f"{'ordered_' if ordered else ''}{'into' if into else 'out'}"
        self.name: str = f"{program.key}_{loop}_{64 if double else 32}"
        self.module: ir.Module = ir.Module(name=program.key)
        self._memo: dict[Any, Any] = {}  # before the loop over edges
        self._edge_memo: dict[Any, Any] = {}
        self.piece: Any = None  # of the nodes, each with tables of its own
        self._own: bool = False  # whether values are those of the node's own term
        self._inner: list[bool] = []
        own_end = "target" if into else "source"
        for operation, arguments, _, options in program.values:
            inner = any(self._inner[argument] for argument in arguments)
            if operation == "operand":
                inner = program.operands[options[0]].place not in (own_end, "all")
            if operation in ("share", "loop"):
                inner = operation == "loop" or not into
            self._inner.append(inner)

    # ------------------------------------------------------------------ the loops

    def write(self) -> ir.Module:
        """Writes the function ``loop(arguments, thread, threads)`` and its entry."""
        kind = ir.FunctionType(NOTHING, [LONG.as_pointer(), LONG, LONG])
        function = ir.Function(self.module, kind, "loop")
        function.linkage = "internal"
        self.entry: ir.IRBuilder = ir.IRBuilder(function.append_basic_block("entry"))
        builder = ir.IRBuilder(function.append_basic_block("start"))
        self._arguments: Any = function.args[0]
        names = ["rows", "pieces", *_ARRAYS[: len(_ARRAYS) - (not self.ordered)]]
        self.numbers: dict[str, Any] = {n: self._argument(number) for number, n in enumerate(names)}
        first = len(names)
        count = len(self.program.operands)
        codes = 1 + max((operand.code for operand in self.program.operands), default=-1)
        self.operands: list[Any] = [self._argument(first + number) for number in range(count)]
        self.codes: list[Any] = [self._argument(first + count + number) for number in range(codes)]
        results = len(self.program.results)
        first += count + codes
        self.results: list[Any] = [self._argument(first + number) for number in range(results)]
        self.sizes: list[Any] = [
            self._argument(first + results + number) for number in range(results)
        ]
        self.ptr: Any = self._array("row_ptr" if self.into else "col_ptr", SHORT)
        self._begin(builder)
        thread, threads = function.args[1:]
        pieces, one = self.numbers["pieces"], LONG(1)
        shares = [
            builder.sdiv(builder.mul(pieces, number), threads)
            for number in (thread, builder.add(thread, one))
        ]
        with loop(builder, self.entry, *shares) as self.piece:
            begin, end = (
                self._part(builder, piece, pieces)
                for piece in (self.piece, builder.add(self.piece, one))
            )
            with loop(builder, self.entry, begin, end) as i:
                self._node(builder, i)
        builder.ret_void()
        self.entry.branch(function.basic_blocks[1])
        self._entry_points(function)
        return self.module

    def _argument(self, place: int) -> Any:
        return self.entry.load(self.entry.gep(self._arguments, [LONG(place)]))

    def _array(self, name: str, kind: Any) -> Any:
        return self.entry.inttoptr(self.numbers[name], kind.as_pointer())

    def _entry_points(self, function: ir.Function) -> None:
        """``name(arguments, threads)``: on torch's threads, or as a plain call."""
        m = self.module

        def outside(name: str, result: Any, *arguments: Any) -> ir.Function:
            return ir.Function(m, ir.FunctionType(result, arguments), f"staticgraph_{name}")

        work = ir.Function(m, ir.FunctionType(NOTHING, [BYTE.as_pointer()]), "work")
        work.linkage = "internal"
        b = ir.IRBuilder(work.append_basic_block())
        getters = [outside(f"omp_get_{n}", SHORT) for n in ("thread_num", "num_threads")]
        pointer = b.bitcast(work.args[0], LONG.as_pointer())
        b.call(function, [pointer, *(b.sext(b.call(getter, []), LONG) for getter in getters)])
        b.ret_void()
        run = ir.Function(m, ir.FunctionType(NOTHING, [LONG.as_pointer(), LONG]), self.name)
        b = ir.IRBuilder(run.append_basic_block())
        parallel = outside("GOMP_parallel", NOTHING, work.type, BYTE.as_pointer(), SHORT, SHORT)
        with b.if_else(b.icmp_signed(">", run.args[1], LONG(1))) as (many, single):
            with many:
                team = b.trunc(run.args[1], SHORT)
                b.call(parallel, [work, b.bitcast(run.args[0], BYTE.as_pointer()), team, SHORT(0)])
            with single:
                b.call(function, [run.args[0], LONG(0), LONG(1)])
        b.ret_void()

    def _part(self, b: ir.IRBuilder, piece: Any, of: Any) -> Any:
        """The first node of a piece, by bisection: nodes and edges before it are its share."""
        rows = self.numbers["rows"]
        whole = b.add(rows, self._long(b, self.ptr, rows, SHORT))
        wanted = b.sdiv(b.mul(whole, piece), of)
        low, high = self.entry.alloca(LONG), self.entry.alloca(LONG)
        b.store(LONG(0), low)
        b.store(rows, high)
        head, body, done = (b.append_basic_block(name) for name in ("find", "half", "found"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(b.icmp_signed("<", b.load(low), b.load(high)), body, done)
        b.position_at_end(body)
        middle = b.sdiv(b.add(b.load(low), b.load(high)), LONG(2))
        before = b.add(middle, self._long(b, self.ptr, middle, SHORT))
        less = b.icmp_signed("<", before, wanted)
        b.store(b.select(less, b.add(middle, LONG(1)), b.load(low)), low)
        b.store(b.select(less, b.load(high), middle), high)
        b.branch(head)
        b.position_at_end(done)
        return b.load(low)

    @staticmethod
    def _long(b: ir.IRBuilder, array: Any, at: Any, kind: Any) -> Any:
        value = b.load(b.gep(array, [at]))
        return b.sext(value, LONG) if kind is SHORT else value

    def _begin(self, builder: ir.IRBuilder) -> None:
        """Nodes' own terms of rows that edges add to at once: one thread, before all edges."""
        matches = [pair for pair in enumerate(self.program.results) if pair[1].start >= 0]
        matches = [
            place for place, result in matches if self.into and result.reduction == "source_sum"
        ]
        if not matches:
            return
        with loop(builder, self.entry, LONG(0), self.numbers["rows"]) as i:
            self.own, self.outer = i, builder
            for number in matches:
                Rows(self, builder, number).begin(builder)
        self._memo.clear()

    def _node(self, builder: ir.IRBuilder, i: Any) -> None:
        """One node: what depends on it alone, its edges, and its reductions."""
        values, edges = (builder.append_basic_block(name) for name in ("values", "edges"))
        self.own: Any = i
        self.begin: Any = self._long(builder, self.ptr, i, SHORT)
        self.end: Any = self._long(builder, self.ptr, builder.add(i, LONG(1)), SHORT)
        self.outer: ir.IRBuilder = ir.IRBuilder(values)
        powers, results = reductions(self, builder)
        builder.branch(values)
        builder.position_at_end(edges)
        if powers:
            with self._edges(builder):
                for reduction in powers:
                    reduction.compare()
            for reduction in (
                *powers,
                *(result for result in results if isinstance(result, Softmax)),
            ):
                reduction.begin(builder)
        adding = [*powers, *(result for result in results if result.reads_edges)]
        if adding:
            with self._edges(builder):
                for reduction in adding:
                    reduction.add()
        for reduction in results:
            reduction.finish()
        self.outer.branch(edges)

    @contextmanager
    def _edges(self, builder: ir.IRBuilder) -> Iterator[None]:
        """Writes a loop over the edges of a node."""
        self._edge_memo.clear()
        with loop(builder, self.entry, self.begin, self.end) as p:
            self.inner: ir.IRBuilder = builder
            self.first: Any = builder.icmp_signed("==", p, self.begin)
            self.edge: Any = p
            if self.ordered or not self.into:
                order = self._array("order" if self.into else "transpose", SHORT)
                self.edge = self._long(builder, order, p, SHORT)
            ends = self._array("src" if self.into else "dst", LONG)
            self.other: Any = self._long(builder, ends, self.edge, LONG)
            yield

    # ------------------------------------------------------------------ values

    def numbers_at(self, place: int) -> Numbers:
        """Writes where a value is computed: for each edge, or for the node before its edges."""
        inner = self._inner[place] and not self._own
        return Numbers(self.inner if inner else self.outer, self.double)

    def kind(self, lanes: int) -> Any:
        """The type of a number, or of a vector of them."""
        return self.real if lanes == 1 else ir.VectorType(self.real, lanes)

    def vector(self, place: int, index: Index, lanes: int) -> Any:
        """The numbers of a value from ``index`` on, ``lanes`` in the last dimension."""
        inner = self._inner[place]
        memo = self._edge_memo if inner and not self._own else self._memo
        key = self._own and inner, place, index, lanes
        if key not in memo:
            memo[key] = self._vector(place, index, lanes)
        return memo[key]

    def own_vector(self, place: int, index: Index, lanes: int) -> Any:
        """The numbers of a value of the node's own term."""
        self._own = True
        value = self.vector(place, index, lanes)
        self._own = False
        return value

    def added(self, place: int, index: Index, lanes: int, to: Any) -> Any:
        """The numbers of a value, added to others; a product is fused with the sum."""
        operation, arguments, _, _ = self.program.values[place]
        n = self.numbers_at(place)
        if operation == "mul":
            first, second = (self._broadcast(n, argument, index, lanes) for argument in arguments)
            return Numbers(self.inner, self.double).fma(first, second, to)
        return self.inner.fadd(to, self.vector(place, index, lanes))

    def _vector(self, place: int, index: Index, lanes: int) -> Any:
        operation, arguments, shape, options = self.program.values[place]
        n = self.numbers_at(place)
        if operation in OPERATIONS and lanes == 1 and shape and shape[-1] > 1:
            first, length = next(
                span for span in columns(shape[-1], self.lanes) if span[0] <= index[-1] < sum(span)
            )
            if length > 1:
                whole = self.vector(place, (*index[:-1], first), length)
                return lane(n.builder, whole, index[-1] - first)
        if operation in OPERATIONS:
            vectors = [self._broadcast(n, argument, index, lanes) for argument in arguments]
            return OPERATIONS[operation](n, *vectors)
        if operation == "number":
            return ir.Constant(self.kind(lanes), options[0] if lanes == 1 else [options[0]] * lanes)
        if operation == "share":
            return self._share(n.builder)
        if operation == "loop":
            return n.builder.icmp_signed("==", self.own, self.other)
        if operation == "operand":
            row = self.row(options[0])
            return self.load(n.builder, row, flat(index, shape), lanes)
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
        offset = 0
        while offset < lanes:
            here = (*index[:-1], index[-1] + offset) if index else index
            left = lanes - offset
            source, below = arguments[0], self.program.values[arguments[0]].shape
            if operation == "view":
                there = unflat(flat(here, shape), below)
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
                sizes = iter(
                    [(argument, self.program.values[argument].shape[dim]) for argument in arguments]
                )
                source, size = next(sizes)
                while place >= size:
                    place -= size
                    source, size = next(sizes)
                there = (*here[:dim], place, *here[dim + 1 :])
                run = size - place if dim == len(shape) - 1 else left
            run = min(left, 1 << max(run, 1).bit_length() - 1)
            run = min(run, 1 << left.bit_length() - 1)
            yield source, there, run
            offset += run

    def _broadcast(self, n: Numbers, place: int, index: Index, lanes: int) -> Any:
        """The numbers of an argument that broadcasts to the shape that ``index`` is of."""
        shape = self.program.values[place].shape
        there = tuple(
            0 if size == 1 else position
            for size, position in zip(shape, index[len(index) - len(shape) :], strict=True)
        )
        if lanes > 1 and (not shape or shape[-1] == 1):
            return spread(n.builder, self.vector(place, there, 1), lanes)
        return self.vector(place, there, lanes)

    def _total(self, n: Numbers, place: int, index: Index, lanes: int) -> Any:
        """A sum over dimensions, in vectors along the last one that is left, or along the last one
        of all if that is summed."""
        _, (below,), _, dims = self.program.values[place]
        shape = self.program.values[below].shape
        last = len(shape) - 1
        if last in dims and lanes > 1:
            numbers = [
                self.vector(place, (*index[:-1], index[-1] + offset), 1) for offset in range(lanes)
            ]
            return self._side_by_side(n.builder, numbers)
        left = iter(index)
        ranges: list[Sequence[int]] = []
        for dim, size in enumerate(shape):
            ranges.append(range(size) if dim in dims else (next(left),))
        if last not in dims:
            return self._added(n, below, [(summand, lanes) for summand in product(*ranges)])
        parts: dict[int, list[tuple[Index, int]]] = {}
        for indices in product(*ranges[:-1]):
            for first, length in columns(shape[-1], self.lanes):
                parts.setdefault(length, []).append(((*indices, first), length))
        value = None
        for indices in parts.values():
            part = joined(n.builder, self._added(n, below, indices))
            value = part if value is None else n.builder.fadd(value, part)
        return value

    def _added(self, n: Numbers, place: int, indices: list[tuple[Index, int]]) -> Any:
        """The sum of vectors of a value; products are fused with it."""
        operation, arguments, _, _ = self.program.values[place]
        value = None
        for index, lanes in indices:
            if operation == "mul" and value is not None:
                first, second = (self._broadcast(n, a, index, lanes) for a in arguments)
                value = n.fma(first, second, value)
            else:
                term = self.vector(place, index, lanes)
                value = term if value is None else n.builder.fadd(value, term)
        return value

    def _share(self, b: ir.IRBuilder) -> Any:
        """One over the number of edges into the target."""
        begin, end = self.begin, self.end
        if not self.into:
            ptr, after = self._array("row_ptr", SHORT), b.add(self.other, LONG(1))
            begin, end = (self._long(b, ptr, place, SHORT) for place in (self.other, after))
        return inverse(b, b.sub(end, begin), self.real)

    def row(self, number: int) -> Any:
        """The address of an operand's row."""
        place, shape, code = self.program.operands[number]
        inner = not self._own and place not in ("target" if self.into else "source", "all")
        memo, key = self._edge_memo if inner else self._memo, ("row", number)
        if key not in memo:
            b = self.inner if inner else self.outer
            index: Any = LONG(0)
            if place in ("source", "target"):
                index = self.other if inner else self.own
            elif place == "edge":
                index = self.edge
            elif place == "table":
                index = self.code(code)
            base = self.entry.inttoptr(self.operands[number], self.real.as_pointer())
            memo[key] = b.gep(base, [b.mul(index, LONG(math.prod(shape)))], inbounds=True)
        return memo[key]

    def code(self, number: int) -> Any:
        """The row of a table that the edge reads."""
        codes = self.entry.inttoptr(self.codes[number], LONG.as_pointer())
        return self._long(self.inner, codes, self.edge, LONG)

    def load(self, b: ir.IRBuilder, row: Any, at: int, lanes: int) -> Any:
        """Loads numbers of a row."""
        place = b.gep(row, [LONG(at)], inbounds=True)
        if lanes > 1:
            place = b.bitcast(place, ir.VectorType(self.real, lanes).as_pointer())
        return b.load(place, align=8 if self.double else 4)

    def store(self, b: ir.IRBuilder, value: Any, row: Any, at: int) -> None:
        """Stores numbers of a row of a result."""
        place = b.gep(row, [LONG(at)], inbounds=True)
        if isinstance(value.type, ir.VectorType):
            place = b.bitcast(place, value.type.as_pointer())
        b.store(value, place, align=8 if self.double else 4)

    def _side_by_side(self, b: ir.IRBuilder, parts: Sequence[Any]) -> Any:
        lanes = sum(count(part) for part in parts)
        value, at = ir.Constant(ir.VectorType(self.real, lanes), ir.Undefined), 0
        for part in parts:
            for number in range(count(part)):
                value = b.insert_element(value, lane(b, part, number), SHORT(at))
                at += 1
        return value
