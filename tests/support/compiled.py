"""Compiles the kernels that a launch would run on an H100; this needs no device.

``noted`` calls a function of a ``gpu.py`` with CPU tensors and notes the kernels that it would
launch, with the types, constants, warps and stages that Triton's own launcher gives them; it
specialises arguments (a number that is 1, an address or number divisible by 16) as on the device.
``launches`` compiles them, so that registers and loads are those of the device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

from triton._C.libtriton import ir  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, make_backend  # noqa: E402
from triton.runtime.jit import JITFunction, create_function_from_signature  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
BACKEND = make_backend(HOPPER)
# Before 3.9, with which the bounds of the tests were measured.
OLDER = int(triton.__version__.split(".")[1]) < 9


class Launch(NamedTuple):
    """One launch that was not made.

    Attributes:
        kernel: the Triton function.
        arguments: its arguments by name.
        options: such as the number of warps.
    """

    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kernel.__name__

    def numbers(self, kind: type) -> list[str]:
        """Returns the names of the arguments of this type that are known at run time only."""
        names = {p.name for p in self.kernel.params if not p.is_constexpr}
        return [n for n, value in self.arguments.items() if type(value) is kind and n in names]

    def replace(self, **arguments: Any) -> Launch:
        """Returns the launch with other arguments."""
        return self._replace(arguments=self.arguments | arguments)

    def source(self) -> tuple[ASTSource, Any]:
        """Returns what Triton compiles, and its options."""
        kernel, options = self.kernel, {**self.options, "debug": False}
        binder = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
        bound, kinds, rest = binder(**self.arguments, **options)
        options, *types = kernel._pack_args(BACKEND, options, bound, kinds, rest)
        return ASTSource(kernel, *types), options

    def ttir(self) -> str:
        """Returns the kernel in Triton's first, target-independent form; takes 30 ms."""
        source, options = self.source()
        context, stages = ir.context(), {}
        ir.load_dialects(context)
        BACKEND.load_dialects(context)
        functions, modules = BACKEND.get_codegen_implementation(options), BACKEND.get_module_map()
        module = source.make_ir(HOPPER, options, functions, modules, context)
        BACKEND.add_stages(stages, options, source.language)
        return str(stages["ttir"](module, {}))


class Compiled(NamedTuple):
    """One compiled launch.

    Attributes:
        name: name of the kernel.
        ptx: its assembly.
        registers: registers per thread.
        spilled: bytes per thread that did not fit in registers.
        shared: bytes of shared memory.
    """

    name: str
    ptx: str
    registers: int
    spilled: int
    shared: int

    def widest(self, access: str) -> int:
        """Returns the bits of the widest vector load (``ld``) or store (``st``).

        Includes copies to shared memory. A single 64-bit number is not a vector.
        """
        vectors = re.findall(rf"{access}\.global\S*?\.v(\d)\.[busf](\d+)", self.ptx)
        copies = re.findall(r"cp\.async\.c[ag]\S+ \[[^]]*\], \[[^]]*\], (?:0x)?(\w+)", self.ptx)
        widths = [int(count) * int(bits) for count, bits in vectors]
        return max(widths + [8 * int(count, 16) for count in copies if access == "ld"], default=0)

    @property
    def loops(self) -> int:
        """Number of branches back to an earlier label."""
        seen, count = set(), 0
        for label, target in re.findall(r"(?m)^(\$\w+):|\bbra(?:\.uni)?\s+(\$\w+)", self.ptx):
            seen.add(label)
            count += target in seen and bool(target)
        return count

    @property
    def atomics(self) -> list[str]:
        return re.findall(r"\b(?:atom|red\.global)\S*", self.ptx)

    @property
    def matrix_instructions(self) -> int:
        return len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", self.ptx))


def narrow_products(ttir: str) -> list[str]:
    """The 32-bit products in the offsets of pointers that may overflow.

    Those of a number known at run time (an argument, a program, what was loaded) by anything but a
    power of two, which is a block of rows. The second and third axis of a grid count columns.
    """
    loaded = set(re.findall(r"(%\w+): i(?:32|64)", ttir))  # known at run time
    blocks, needs, products, todo = set(), defaultdict(list), {}, []
    for line in ttir.splitlines():
        line = re.sub(r" loc\(.*", "", line)
        name, *used = re.findall(r"%\w+", line) or [""]
        kind, _, right = line.strip().partition("scf.for ")
        if (
            right
        ):  # [results =] scf.for index = first to last step step iter_args(inner = outer, ...)
            index, *used = re.findall(r"%\w+", right)
            inner, outer = [index, *used[3::2]], [used[:3], *([value] for value in used[4::2])]
            for name, values in zip(inner, outer, strict=False):
                needs[name] = values
                loaded.update([name] * (not loaded.isdisjoint(values)))
            continue
        operation, integer = (
            re.search(pattern, line) for pattern in (r"= \"?([\w.]+)", r"[x< ]i(\d+)>?$")
        )
        kind = operation[1] if operation else ""
        if kind == "tt.addptr":
            todo.append(used[1])
        elif kind == "arith.constant":
            value = re.search(r"constant (?:dense<)?(\d+)>? :", line)
            blocks.update([name] * (value is not None and int(value[1]).bit_count() == 1))
        elif kind == "tt.load" or "get_program_id x" in line:
            loaded.add(name)
        elif kind and integer:
            needs[name] = used
            bounded = kind == "arith.remsi" and used[1] not in loaded
            loaded.update([name] * (not bounded and not loaded.isdisjoint(used)))
            blocks.update([name] * (kind == "tt.splat" and used[0] in blocks))
            if kind == "arith.muli" and integer[1] == "32" and name in loaded:
                products.update({name: line.strip()} if blocks.isdisjoint(used) else {})
    seen = set()
    while todo:
        name = todo.pop()
        todo += [] if name in seen else needs[name]
        seen.add(name)
    return [line for name, line in products.items() if name in seen]


def noted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Launch]:
    """Returns the launches of ``function``."""
    calls: list[Launch] = []

    def note(kernel: Any, *operands: Any, grid: Any, warmup: bool, **options: Any) -> None:
        assert min(grid) >= 1
        values = dict(zip(kernel.arg_names, operands, strict=False)) | options
        arguments = {name: values.pop(name) for name in kernel.arg_names}
        calls.append(Launch(kernel, arguments, values))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", note)
        function(*args, **kwargs)
    return calls


def launches(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Compiled]:
    """Returns the launches of ``function``, compiled for sm_90."""
    return [compile_launch(launch) for launch in noted(function, *args, **kwargs)]


def compile_launch(launch: Launch) -> Compiled:
    """Returns a launch, compiled for sm_90."""
    source, options = launch.source()
    kernel = triton.compile(source, target=HOPPER, options=options.__dict__)
    registers, stack = _resources(kernel.asm["cubin"])
    return Compiled(launch.name, kernel.asm["ptx"], registers, stack, kernel.metadata.shared)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Returns the registers and stack bytes per thread, read by the tool that ships with Triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack, local = (
        re.search(rf"{word}:(\d+)", text) for word in ("REG", "STACK", "LOCAL")
    )
    assert registers is not None, text
    assert stack is not None, text
    assert local is not None, text
    return int(registers[1]), int(stack[1]) + int(local[1])
