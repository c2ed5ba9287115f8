"""Private APIs of Inductor and its CUDA graph trees."""

from __future__ import annotations

import re
from pathlib import Path

import torch
import torch.utils.checkpoint

from staticgraph.internals import inductor, memory


def test_pieces_are_counted_where_torch_makes_them(monkeypatch):
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "cudagraphify", lambda *args, **kwargs: "made")
    before = compile_fx.cudagraphify
    assert inductor.Pieces().count == 0
    with inductor.counting_pieces() as pieces:
        assert compile_fx.cudagraphify(1, a=2) == "made"
        assert compile_fx.cudagraphify() == "made"
    assert pieces.count == 2
    assert compile_fx.cudagraphify is before


def test_torch_still_records_where_pieces_are_counted():
    """``compile_fx`` calls ``cudagraphify`` by its global name."""
    import torch._inductor.compile_fx as compile_fx
    import torch._inductor.output_code as output_code

    sources = [Path(module.__file__).read_text() for module in (compile_fx, output_code)]
    assert any(re.search(r"import cudagraphify|def cudagraphify", each) for each in sources)


def test_a_pool_is_given_up_by_the_allocators_own_names(monkeypatch):
    """A build with CUDA has these names."""
    called = []
    names = ("_cuda_endAllocateToPool", "_cuda_releasePool", "_cuda_clearCublasWorkspaces")
    for name in names:
        if torch.backends.cuda.is_built():
            assert hasattr(torch._C, name)
        monkeypatch.setattr(
            torch._C, name, lambda *args, name=name: called.append((name, args)), raising=False
        )
    memory.end_allocations(0, (1, 2))
    memory.release(0, (1, 2))
    memory.drop_workspaces()
    assert called == list(zip(names, [(0, (1, 2)), (0, (1, 2)), ()], strict=True))


def test_operators_are_declared_before_inductor_meets_them():
    """As Inductor itself would, so that declaring them again changes nothing."""
    from torch._inductor import lowering

    from staticgraph.kernels.linear.op import _forward

    lowering.lowerings.pop(_forward, None)
    inductor.declare_operators("staticgraph")
    declared = lowering.lowerings[_forward]
    assert lowering.maybe_layout_constraints(_forward) is not None
    inductor.declare_operators("staticgraph")
    assert lowering.lowerings[_forward] is declared
