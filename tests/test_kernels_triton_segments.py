"""Max, softmax and attention in Triton without a GPU: compiled for sm_90."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from staticgraph.kernels.dot_attention import gpu as dots  # noqa: E402
from staticgraph.kernels.gcn_sum import gpu as gcn  # noqa: E402
from staticgraph.kernels.neighbour_attention import gpu as attention  # noqa: E402
from staticgraph.kernels.neighbour_max import gpu as largest  # noqa: E402
from staticgraph.kernels.pair_score import gpu as pair  # noqa: E402
from staticgraph.kernels.segments import gpu as segments  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = dict.fromkeys(("width", "heads", "nodes"), "i32")
TYPES |= dict.fromkeys(("slope", "fill"), "fp32")
TYPES |= dict.fromkeys(("src", "dst", "ptr"), "*i64")
TYPES |= dict.fromkeys(("row_ptr", "col_ptr", "transpose"), "*i32")
# Kept in the precision of the sums.
TYPES |= dict.fromkeys(("root", "share", "own_share", "largest", "dweight", "dscore"), "*fp32")
WIDE_SCORES = {"dedge": "*fp32", "down": "*fp32"}

SIZES = {
    "width": 60,
    "columns": 60,
    "scale": 0.25,
    "heads": 4,
    "WIDE": triton.language.float32,
    "HEADS": 4,
    "ROWS": 16,
    "BLOCK": 64,
    "COLUMNS": 64,
}
FLAGS = ("WEIGHTED", "LOOPS", "BIASED", "PAIRED", "EDGED", "OWNED", "KEYED", "VALUED")
KERNELS = [
    (gcn.degrees_kernel, {"own": "*fp32"}),
    (gcn.forward_kernel, {"own": "*fp32"}),
    (gcn.backward_kernel, {"own": "*fp32"}),
    (gcn.weights_kernel, {"own": "*fp32", "down": "*fp32", "droot": "*fp32"}),
    (gcn.degrees_backward_kernel, {"down": "*fp32", "droot": "*fp32"}),
    (attention.forward_kernel, {}),
    (attention.sources_kernel, WIDE_SCORES),
    (attention.targets_kernel, WIDE_SCORES),
    (pair.forward_kernel, {}),
    (pair.targets_kernel, {}),
    (pair.sources_kernel, {}),
    (dots.forward_kernel, {}),
    (dots.sources_kernel, {}),
    (dots.targets_kernel, {}),
    (largest.forward_kernel, {}),
    (largest.shares_kernel, {}),
    (largest.backward_kernel, {}),
    (segments.max_forward_kernel, {}),
    (segments.max_backward_kernel, {}),
    (segments.softmax_forward_kernel, {}),
    (segments.softmax_backward_kernel, {}),
]


def cases():
    """Every kernel with all its options in both dtypes, and with no options."""
    for kernel, special in KERNELS:
        name = f"{kernel.__module__.split('.')[-2]}.{kernel.__name__}"
        yield pytest.param(kernel, special, True, "fp32", id=name)
        yield pytest.param(kernel, special, True, "bf16", id=f"{name} bf16")
        if {p.name for p in kernel.params} & set(FLAGS):
            yield pytest.param(kernel, special, False, "fp32", id=f"{name} bare")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kernel", "special", "on", "data"), cases())
def test_compiles_for_hopper_without_atomics(kernel, special, on, data):
    types = {
        p.name: "constexpr" if p.is_constexpr else {**TYPES, **special}.get(p.name, f"*{data}")
        for p in kernel.params
    }
    options = {**SIZES, **dict.fromkeys(FLAGS, on)}
    chosen = {p.name: options[p.name] for p in kernel.params if p.is_constexpr}
    source = ASTSource(kernel, types, chosen)
    assembly = triton.compile(source, target=HOPPER).asm["ptx"]
    assert ".target sm_90" in assembly
    assert not [line for line in assembly.splitlines() if "atom." in line or "red.global" in line]
