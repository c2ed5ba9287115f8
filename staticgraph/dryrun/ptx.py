"""Registers, spills and loads of every Triton kernel, compiled by ptxas for the target.

Inductor's kernels are compiled from their sources with the first of their configurations, as in
Inductor's own workers, which never load what they compile; this library's were compiled when they
were launched. The numbers are read from the binary by ``cuobjdump``, which comes with Triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from staticgraph.dryrun.launches import WATCH
from staticgraph.dryrun.report import KernelUse
from staticgraph.internals.inductor import generated_module

_VECTOR = re.compile(r"ld\.global[.\w:]*\.v[248]\.")
_VECTOR_BITS = re.compile(r"ld\.global\S*?\.v(\d)\.[busf](\d+)")
_ASYNC_BYTES = re.compile(r"cp\.async\.c[ag]\S+ \[[^]]*\], \[[^]]*\], (?:0x)?(\w+)")
_ATOMIC = re.compile(r"\n\s*(?:@\S+\s+)?(?:atom|red)\.")
_TARGET = re.compile(r"\.target (sm_\w+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+).*? LOCAL:(\d+)")
_seen: dict[str, KernelUse] = {}


def uses() -> list[KernelUse]:
    """The resources of all kernels that :data:`WATCH` noted since it was emptied, each once."""
    found = [
        use_of(name, "staticgraph", kernel)
        for name, kernels in sorted(WATCH.kernels.items())
        for kernel in kernels.values()
    ]
    return found + [_of_source(name, source) for source, name in WATCH.sources.items()]


def _of_source(name: str, source: str) -> KernelUse:
    if source not in _seen:
        tuner = getattr(generated_module(source), name)
        kernel = tuner._precompile_config(tuner.configs[0]).kernel
        _seen[source] = use_of(name, "inductor", kernel)
    return _seen[source]


def use_of(name: str, owner: str, kernel: Any) -> KernelUse:
    """The resources of one compiled kernel."""
    key = f"{name} {kernel.hash}"
    if key not in _seen:
        ptx = kernel.asm["ptx"]
        registers, stack, local = _usage(kernel.asm["cubin"])
        _seen[key] = KernelUse(
            name,
            owner,
            registers,
            _spilled(kernel) if stack + local else 0,
            kernel.metadata.shared,
            kernel.metadata.num_warps,
            len(_VECTOR.findall(ptx)),
            len(_ATOMIC.findall(ptx)),
            load_bits(ptx),
        )
    return _seen[key]


def load_bits(ptx: str) -> int:
    """Bits of the widest vector load, including copies to shared memory."""
    vectors = [int(count) * int(bits) for count, bits in _VECTOR_BITS.findall(ptx)]
    copies = [8 * int(count, 16) for count in _ASYNC_BYTES.findall(ptx)]
    return max(vectors + copies, default=0)


def _spilled(kernel: Any) -> int:
    """Bytes per thread that ptxas spills. A stack alone does not count: the slow path of sin and
    cos, for example, keeps an array there."""
    from triton.backends.nvidia.compiler import get_ptxas

    ptx, arch = kernel.asm["ptx"], kernel.metadata.target.arch
    target = _TARGET.search(ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        out = str(source.with_suffix(".cubin"))
        log = _tool(get_ptxas(arch).path, "-v", f"--gpu-name={target[1]}", str(source), "-o", out)
    return max((int(spill) for pair in _SPILLS.findall(log) for spill in pair), default=0)


def _usage(cubin: bytes) -> tuple[int, int, int]:
    """Registers, bytes of stack and bytes of local memory, per thread."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
        log = _tool(folder / "cuobjdump", "-res-usage", file.name)
    usage = _USAGE.search(log)
    if usage is None:
        raise RuntimeError(f"cuobjdump says nothing of registers:\n{log}")
    registers, stack, local = (int(number) for number in usage.groups())
    return registers, stack, local


def _tool(path: str | Path, *args: str) -> str:
    """Runs one of the tools that come with Triton and returns its output."""
    done = subprocess.run([str(path), *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path} ended with status {done.returncode}: {done.stderr[-500:]}")
    return done.stdout + done.stderr
