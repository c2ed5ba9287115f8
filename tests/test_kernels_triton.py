"""The Triton kernels without a GPU: interpreted against the references, and compiled for sm_90."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

from support.interpreted import needs_interpreter, run_interpreted  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from staticgraph.kernels.batch_norm import gpu as norm  # noqa: E402
from staticgraph.kernels.dropout_sum import gpu as dropout  # noqa: E402
from staticgraph.kernels.head_blocks import gpu as heads  # noqa: E402
from staticgraph.kernels.linear import gpu as dense  # noqa: E402
from staticgraph.kernels.neighbour_sum import gpu as neighbour  # noqa: E402
from staticgraph.kernels.segments import gpu as segments  # noqa: E402
from staticgraph.kernels.table_sum import gpu as table  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
INTS = {"width", "rows", "columns", "entries", "chunks", "rows_a_chunk", "rows_a_tile"}
INTS |= {"nodes", "places", "own_places", "all_places", "first_place", "heads", "size"}
INTS |= {"site"}
LONGS = {"src", "dst", "code", "index", "offsets", "ptr", "count", "tracked"}
LONGS |= {"node_of_place", "place_of_node", "seed"}
POINTERS = {"row_ptr", "col_ptr", "transpose"}
WIDE_POINTERS = {"partial", "mean", "var", "mean_in", "var_in", "mean_out", "var_out", "self_eps"}
PARAMETERS = {"weight", "bias", "dweight", "dbias", "running_mean", "running_var"}


@pytest.mark.slow
@needs_interpreter
def test_interpreted_in_a_process_of_its_own():
    """One process for all files, so that torch loads once. The GPU cases come last, since they
    replace the CPU implementation of every operator by the Triton one."""
    run_interpreted(
        "interpreted_kernels.py",
        "interpreted_linear.py",
        "interpreted_collate.py",
        "interpreted_segments.py",
        "interpreted_attention.py",
        "interpreted_cases.py",
    )


def signature(kernel, data: str) -> dict[str, str]:
    """The types of a kernel's arguments; ``data`` is the element type of features."""
    types = {}
    for parameter in kernel.params:
        name = parameter.name
        if parameter.is_constexpr:
            types[name] = "constexpr"
        elif name in INTS:
            types[name] = "i32"
        elif name in ("eps", "momentum", "p"):
            types[name] = "fp32"
        elif name in LONGS or (name == "out" and kernel is table.codes_kernel):
            types[name] = "*i64"
        elif name in POINTERS:
            types[name] = "*i32"
        elif name in WIDE_POINTERS or name in PARAMETERS:
            types[name] = "*fp32"
        else:
            types[name] = f"*{data}"
    return types


def constants(kernel, **given) -> dict[str, object]:
    return {p.name: given[p.name] for p in kernel.params if p.is_constexpr}


TL32 = triton.language.float32
SHAPES = {
    "width": 300,
    "heads": 5,
    "size": 60,
    "WIDE": TL32,
    "BLOCK": 64,
    "ROWS": 64,
    "ENTRIES": 64,
    "COLUMNS": 64,
}
FLAGS = {"CODED": True, "SCALAR": False, "SCALED": True, "MEAN": False}
FLAGS |= {"RELU": True, "ADDED": True, "RUNNING": True, "PARTS": 3, "FIRST": True}
FLAGS |= {
    "INTO": True,
    "INTO_X": True,
    "INTO_EDGE": True,
    "STACKED": True,
    "PIECES": 3,
    "CHUNKS": 64,
}
FLAGS |= {"GATED": True, "GIVEN": True, "WEIGHTED": True}
GINE = {**SHAPES, **FLAGS, "TRANSFORM": 2, "JOINED": True, "CUMULATIVE": False}
GCN = {
    **GINE,
    "CODED": False,
    "SCALAR": True,
    "SCALED": False,
    "MEAN": True,
    "TRANSFORM": 1,
    "WEIGHTED": False,
}
KERNELS = [
    neighbour.forward_kernel,
    neighbour.backward_kernel,
    table.forward_kernel,
    table.backward_kernel,
    table.codes_kernel,
    table.join_kernel,
    dropout.fill_kernel,
    dense.masked_sums_kernel,
    segments.sum_forward_kernel,
    segments.sum_backward_kernel,
    heads.to_block_kernel,
    heads.to_rows_kernel,
    norm.statistics_kernel,
    norm.apply_kernel,
    norm.gradient_sums_kernel,
    norm.apply_gradient_kernel,
]


CASES = [(kernel, GINE) for kernel in KERNELS] + [(kernel, GCN) for kernel in KERNELS[:2]]


def case_name(value: object) -> str:
    if isinstance(value, dict):
        return "GINE" if value is GINE else "GCN"
    return f"{value.__module__.split('.')[-2]}.{value.__name__}"  # pyright: ignore


@pytest.mark.sampled(3)
@pytest.mark.parametrize("data", ["fp32", "bf16"])
@pytest.mark.parametrize(("kernel", "options"), CASES, ids=case_name)
def test_compiles_for_hopper_without_atomics(kernel, options, data):
    source = ASTSource(kernel, signature(kernel, data), constants(kernel, **options))
    assembly = triton.compile(source, target=HOPPER).asm["ptx"]
    assert ".target sm_90" in assembly
    assert not [line for line in assembly.splitlines() if "atom." in line or "red.global" in line]
