"""Registers, spills and loads of every Triton kernel, compiled by ptxas for the target.

Inductor's kernels are compiled from their sources with the first of their configurations, as in
Inductor's own workers, which never load what they compile; this library's were compiled when they
were launched. The numbers are those that ``ptxas``, which comes with torch or Triton, prints.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from staticgraph.dryrun.launches import WATCH
from staticgraph.dryrun.report import KernelUse
from staticgraph.internals.inductor import generated_module, use_torchs_assembler

_VECTOR = re.compile(r"ld\.global[.\w:]*\.v[248]\.")
_VECTOR_BITS = re.compile(r"ld\.global\S*?\.v(\d)\.[busf](\d+)")
_ASYNC_BYTES = re.compile(r"cp\.async\.c[ag]\S+ \[[^]]*\], \[[^]]*\], (?:0x)?(\w+)")
_ATOMIC = re.compile(r"\n\s*(?:@\S+\s+)?(?:atom|red)\.")
_TARGET = re.compile(r"\.target (sm_\w+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def uses() -> list[KernelUse]:
    """The resources of all kernels that :data:`WATCH` noted since it was emptied, each once."""
    use_torchs_assembler()
    kernel_uses = [
        use_of(name, "staticgraph", kernel)
        for name, kernels in sorted(WATCH.kernels.items())
        for kernel in kernels.values()
    ]
    return kernel_uses + [_of_source(name, source) for source, name in WATCH.sources.items()]


@cache
def _of_source(name: str, source: str) -> KernelUse:
    tuner = getattr(generated_module(source), name)
    return use_of(name, "inductor", tuner._precompile_config(tuner.configs[0]).kernel)


@cache
def use_of(name: str, owner: str, kernel: Any) -> KernelUse:
    """The resources of one compiled kernel."""
    ptx = kernel.asm["ptx"]
    registers, spilled = _used(kernel)
    return KernelUse(
        name,
        owner,
        registers,
        spilled,
        kernel.metadata.shared,
        kernel.metadata.num_warps,
        len(_VECTOR.findall(ptx)),
        len(_ATOMIC.findall(ptx)),
        load_bits(ptx),
    )


def load_bits(ptx: str) -> int:
    """Bits of the widest vector load, including copies to shared memory."""
    vectors = [int(count) * int(bits) for count, bits in _VECTOR_BITS.findall(ptx)]
    copies = [8 * int(count, 16) for count in _ASYNC_BYTES.findall(ptx)]
    return max(vectors + copies, default=0)


def _used(kernel: Any) -> tuple[int, int]:
    """Registers, and bytes that ptxas spills, per thread. A stack alone is no spill: the slow path
    of sin and cos, for example, keeps an array there."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptx, tool = kernel.asm["ptx"], get_ptxas(kernel.metadata.target.arch).path
    target = _TARGET.search(ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [tool, "-v", f"--gpu-name={target[1]}", source, "-o", f"{source}.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    registers = _REGISTERS.search(done.stderr)
    if registers is None:
        raise RuntimeError(f"{tool} says nothing of registers: {done.stderr[-500:]}")
    spills = [int(spill) for pair in _SPILLS.findall(done.stderr) for spill in pair]
    return int(registers[1]), max(spills, default=0)
