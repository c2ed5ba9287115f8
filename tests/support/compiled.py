"""Compiles the kernels that a launch would run on an H100; this needs no device.

``launches`` calls a function of a ``gpu.py`` with CPU tensors, notes the kernels it would launch
and compiles them with the same types, constants, warps and stages, and the same specialization on
arguments (an address or number divisible by 16), so that registers and loads are those of the
device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
}
# As in Triton's launcher: code is specialized for multiples of 16, which sets the width of loads.
ALIGNED = [["tt.divisibility", 16]]


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
        found = [int(count) * int(bits) for count, bits in vectors]
        return max(found + [8 * int(count, 16) for count in copies if access == "ld"], default=0)

    @property
    def loops(self) -> int:
        """Number of branches back to an earlier label."""
        seen, found = set(), 0
        for label, target in re.findall(r"(?m)^(\$\w+):|\bbra(?:\.uni)?\s+(\$\w+)", self.ptx):
            seen.add(label)
            found += target in seen and bool(target)
        return found

    @property
    def atomics(self) -> list[str]:
        return re.findall(r"\b(?:atom|red\.global)\S*", self.ptx)

    @property
    def matrix_instructions(self) -> int:
        return len(re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)", self.ptx))


def launches(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Compiled]:
    """Returns the launches of ``function``, compiled for sm_90."""
    noted: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def note(kernel: Any, *given: Any, grid: Any, warmup: bool, **options: Any) -> None:
        noted.append((kernel, given, options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", note)
        function(*args, **kwargs)
    return [_compile(*launch) for launch in noted]


def _compile(kernel: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Compiled:
    values = dict(zip(kernel.arg_names, given, strict=False)) | options
    signature, constants, attributes = {}, {}, {}
    for at, parameter in enumerate(kernel.params):
        value = values.pop(parameter.name)
        if parameter.is_constexpr or (type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = POINTERS[value.dtype]
            attributes[at,] = ALIGNED
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                attributes[at,] = ALIGNED
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=HOPPER, options=values)
    registers, stack = _resources(made.asm["cubin"])
    return Compiled(kernel.__name__, made.asm["ptx"], registers, stack, made.metadata.shared)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Returns the registers and stack bytes per thread, read by the tool that ships with Triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack, local = (
        re.search(rf"{word}:(\d+)", said) for word in ("REG", "STACK", "LOCAL")
    )
    assert registers is not None, said
    assert stack is not None, said
    assert local is not None, said
    return int(registers[1]), int(stack[1]) + int(local[1])
