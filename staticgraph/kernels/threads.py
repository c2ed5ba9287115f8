"""CPU kernels on torch's own threads.

numba brings thread pools of its own, and two pools on the same cores are worse than one thread:
OpenMP's workers spin for a while after every region, so torch's would fight numba's between any two
operators. But torch's OpenMP runtime is an ordinary library that is loaded already, and its entry
point ``GOMP_parallel`` is the public interface of GCC's OpenMP, so a kernel is given to the very
threads that torch multiplies matrices with. Entering takes a microsecond while they spin: a product
of 16 x 16 numbers took 2.7 us on one thread and 3.4 on two (two CPU cores, torch 2.13, 2026-11-22).

Invariant: a kernel's work is cut so that no two threads write the same place and a number's terms
are added in the same order whoever adds them, so results are the same bits with any number of
threads. Where torch has another runtime (macOS, builds without OpenMP) the kernels run on the
calling thread.

Source: ``libgomp``'s ABI, https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html.
"""

# numba's typing and code generation are not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from llvmlite import binding, ir
from numba import typeof, types
from numba.core import cgutils
from numba.extending import intrinsic

from staticgraph.kernels.jit import kernel

# Numbers that a pass goes over below which a second thread costs more than it saves: about 10 us.
SMALL = 1 << 15
_SYMBOLS = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
_names = count()


def _runtime() -> ctypes.CDLL | None:
    """torch's libgomp, which is loaded already: opening it by its path gives the same one."""
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libgomp*.so*")):
        found = ctypes.CDLL(str(path))
        if torch.backends.openmp.is_available() and all(hasattr(found, s) for s in _SYMBOLS):
            return found
    return None


_gomp = _runtime()
AVAILABLE = _gomp is not None
for _symbol in _SYMBOLS:
    # Compiled kernels name these symbols; where there are none, nothing calls them.
    _function = ctypes.CDLL(None).abort if _gomp is None else getattr(_gomp, _symbol)
    _address = ctypes.cast(_function, ctypes.c_void_p).value
    assert _address is not None
    binding.add_symbol(f"staticgraph_{_symbol}", _address)


def threads_for(numbers: int) -> int:
    """On how many threads a pass over so many numbers is worth running: torch's, or one."""
    return torch.get_num_threads() if AVAILABLE and numbers >= SMALL else 1


@kernel
def portion(number: int, whole: int, thread: int, threads: int) -> tuple[int, int]:
    """Where a thread's part of ``number`` rows begins and ends, both at multiples of ``whole``."""
    parts = (number + whole - 1) // whole
    first, last = parts * thread // threads, parts * (thread + 1) // threads
    return min(first * whole, number), min(last * whole, number)


def on_threads(body: Any) -> Any:
    """``body(thread, threads, *arguments)``, compiled, as ``run(threads, arguments)`` for kernels.

    On one thread it is a plain call. ``body`` does the part of the work that belongs to ``thread``,
    all of it where there is one.
    """
    return intrinsic(_launcher(body))


def _launcher(body: Any) -> Callable[..., Any]:
    """Types and code of a call of ``body`` on every thread of a team."""

    def run(typing: Any, threads: Any, arguments: Any) -> Any:
        """The type of a call, which returns nothing, and the code of it."""
        inner = typeof(body).get_call_type(typing, (types.intp, types.intp, *arguments.types), {})

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            """Code: an entry for torch's threads, arguments on the stack, the team's call."""
            team, packed = values
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            entry_type = ir.FunctionType(ir.VoidType(), [byte])
            module = builder.module
            compiled = body.get_compile_result(inner)
            context.add_linking_libs([compiled.library])
            function = context.declare_function(module, compiled.fndesc)

            def call(inside: Any, numbers: list[Any], given: Any) -> None:
                """Code: calls the body with a thread's numbers and the arguments unpacked."""
                # Its status is left alone: a kernel of this folder raises nothing.
                context.call_conv.call_function(
                    inside,
                    function,
                    compiled.fndesc.restype,
                    compiled.fndesc.argtypes,
                    [*numbers, *cgutils.unpack_tuple(inside, given)],
                )

            def asked(inside: Any, name: str) -> Any:
                """Code: the answer, int64, of a function of torch's threads that takes nothing."""
                question = cgutils.get_or_insert_function(
                    module, ir.FunctionType(number, []), f"staticgraph_{name}"
                )
                return inside.sext(inside.call(question, []), ir.IntType(64))

            name = f"{builder.function.name}.thread{next(_names)}"
            entry = ir.Function(module, entry_type, name)
            entry.linkage = "internal"
            inside = ir.IRBuilder(entry.append_basic_block())
            given = inside.load(inside.bitcast(entry.args[0], packed.type.as_pointer()))
            numbers = [asked(inside, f"omp_get_{n}") for n in ("thread_num", "num_threads")]
            call(inside, numbers, given)
            inside.ret_void()
            parallel = cgutils.get_or_insert_function(
                module,
                ir.FunctionType(ir.VoidType(), [entry_type.as_pointer(), byte, number, number]),
                "staticgraph_GOMP_parallel",
            )
            many = builder.icmp_signed(">", team, team.type(1))
            with builder.if_else(many) as (on_several, on_one):
                with on_several:
                    data = builder.bitcast(cgutils.alloca_once_value(builder, packed), byte)
                    builder.call(parallel, [entry, data, builder.trunc(team, number), number(0)])
                with on_one:
                    call(builder, [ir.IntType(64)(0), ir.IntType(64)(1)], packed)
            return context.get_dummy_value()

        return types.void(types.intp, arguments), generate

    setattr(run, "body", body)  # noqa: B010  (for whoever has no compiler at hand)
    return run
