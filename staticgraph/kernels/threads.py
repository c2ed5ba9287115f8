"""Runs CPU kernels on torch's own threads.

numba brings its own thread pools, and two pools on the same cores are worse than one thread:
OpenMP's workers spin for a while after every region, so torch's would compete with numba's between
any two operators. But torch's OpenMP runtime is an ordinary library that is already loaded, and its
entry point ``GOMP_parallel`` is the public interface of GCC's OpenMP, so kernels run on the same
threads that torch multiplies matrices with. Entering a region takes a microsecond while they spin:
a product of 16 x 16 numbers took 2.7 us on one thread and 3.4 on two (two CPU cores, torch 2.13,
2026-11-22).

Invariant: a kernel's work is divided so that no two threads write the same location, and the terms
of a number are added in the same order whichever thread adds them. Results are therefore bitwise
identical for any number of threads. If torch has another runtime (macOS, builds without OpenMP),
kernels run on the calling thread.

Source: ``libgomp``'s ABI,
https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html.
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

from staticgraph.jit import kernel_part

# Size of a pass, in numbers, below which a second thread costs more than it saves: about 10 us.
SMALL = 1 << 15
_SYMBOLS = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
_names = count()


def _runtime() -> ctypes.CDLL | None:
    """Returns torch's libgomp, which is already loaded: opening it by path returns the same
    library."""
    folder = Path(torch.__file__).parent / "lib"
    for path in sorted(folder.glob("libgomp*.so*")):
        library = ctypes.CDLL(str(path))
        if torch.backends.openmp.is_available() and all(hasattr(library, s) for s in _SYMBOLS):
            return library
    return None


_gomp = _runtime()
AVAILABLE = _gomp is not None
for _symbol in _SYMBOLS:
    # Compiled kernels refer to these symbols; if they are missing, nothing calls them.
    _function = ctypes.CDLL(None).abort if _gomp is None else getattr(_gomp, _symbol)
    _address = ctypes.cast(_function, ctypes.c_void_p).value
    assert _address is not None
    binding.add_symbol(f"staticgraph_{_symbol}", _address)


@kernel_part
def portion(number: int, thread: int, threads: int) -> tuple[int, int]:
    """Returns where a thread's part of ``number`` rows begins and ends."""
    return number * thread // threads, number * (thread + 1) // threads


def on_threads(body: Any) -> Any:
    """Turns a compiled ``body(thread, threads, *arguments)`` into ``run(threads, arguments)`` for
    kernels.

    With one thread it is a plain call. ``body`` does the part of the work that belongs to
    ``thread``, all of it if there is only one.
    """
    return intrinsic(_launcher(body))


def _launcher(body: Any) -> Callable[..., Any]:
    """Returns typing and code generation for a call of ``body`` on every thread of a team."""

    def run(typing: Any, threads: Any, arguments: Any) -> Any:
        """Returns the type of the call, which returns nothing, and its code generator."""
        inner = typeof(body).get_call_type(typing, (types.intp, types.intp, *arguments.types), {})

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            """Generates the entry point for torch's threads, the arguments on the stack, and the
            parallel call."""
            team, packed = values
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            entry_type = ir.FunctionType(ir.VoidType(), [byte])
            module = builder.module
            compiled = body.get_compile_result(inner)
            context.add_linking_libs([compiled.library])
            function = context.declare_function(module, compiled.fndesc)

            def call(inside: Any, numbers: list[Any], fields: Any) -> None:
                """Generates the call of the body with a thread's numbers and the unpacked
                arguments."""
                # Its status is ignored: kernels of this package raise nothing.
                context.call_conv.call_function(
                    inside,
                    function,
                    compiled.fndesc.restype,
                    compiled.fndesc.argtypes,
                    [*numbers, *cgutils.unpack_tuple(inside, fields)],
                )

            def call_query(inside: Any, name: str) -> Any:
                """Generates a call of an OpenMP query function without arguments, with an int64
                result."""
                question = cgutils.get_or_insert_function(
                    module, ir.FunctionType(number, []), f"staticgraph_{name}"
                )
                return inside.sext(inside.call(question, []), ir.IntType(64))

            name = f"{builder.function.name}.thread{next(_names)}"
            entry = ir.Function(module, entry_type, name)
            entry.linkage = "internal"
            inside = ir.IRBuilder(entry.append_basic_block())
            loaded = inside.load(inside.bitcast(entry.args[0], packed.type.as_pointer()))
            numbers = [call_query(inside, f"omp_get_{n}") for n in ("thread_num", "num_threads")]
            call(inside, numbers, loaded)
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

    setattr(run, "body", body)  # noqa: B010 (for callers without a compiler)
    return run
