"""Every path of attention equals dense attention, forward and backward."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from support.attending import Attending, batch_of, pair_by_pair
from support.parity import differences, plain_step, poisoned, static_step, unknown_counts
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GPSConv, aggr, global_add_pool

import staticgraph as sg
from staticgraph.nn.attention import paths as attention_paths
from staticgraph.nn.context.present import Restored
from staticgraph.sizes.attention import PATHS, WORTH_IT, AttentionSetting, attention_path

SIZES = [60, 3, 8, 1, 17, 5, 9, 2, 30]
BOUNDS = ((0, 60), (1, 30), (3, 9), (6, 5))  # four blocks that fit SIZES without spare room
BATCH = batch_of(SIZES, sg.Capacity(170, 20, 14, 60, order_statistics=BOUNDS))
# Graphs across borders of tiles of 128, a graph larger than a tile, and tiles of padding only.
WIDE = batch_of([160, 3, 8, 1, 17, 50, 9, 2, 90], sg.Capacity(700, 20, 14, 160))


def forward(model, data):
    return model(data)


# Every second case has another path, each batch in turn.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("path", "batch"),
    [
        pytest.param(path, batch, id=f"{'small' if batch is BATCH else 'several tiles'}-{path}")
        for number, path in enumerate(PATHS)
        for batch in ((WIDE, BATCH) if number % 2 else (BATCH, WIDE))
    ],
)
def test_a_compiled_step_is_one_graph_and_equals_plain_pyg(path, batch, monkeypatch):
    """Outputs and gradients in float64, with unknown counts and garbage in the padding."""
    torch.manual_seed(0)
    model = Attending().double()
    monkeypatch.setattr("support.parity.BATCH", batch)
    expected = plain_step(model, forward, batch)
    sg.convert(own := copy.deepcopy(model), attention=path)
    padded = unknown_counts(poisoned(batch, 1000.0))
    found, trace = static_step(own, forward, padded, trace=True)
    assert trace.static, (trace.error, trace.obstacles)
    assert differences(expected, found, 1e-12) == []


@pytest.mark.parametrize("path", ["dense", "size-classed"])
@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_a_further_key_for_each_graph_equals_plain_pyg(path, option, monkeypatch):
    torch.manual_seed(0)
    model = Attending()
    model.gps = GPSConv(8, None, heads=2, norm=None, attn_kwargs={option: True})
    model = model.double()
    monkeypatch.setattr("support.parity.BATCH", BATCH)
    expected = plain_step(model, forward, BATCH)
    sg.convert(model, attention=path)
    found, _ = static_step(model, forward, unknown_counts(BATCH))
    assert differences(expected, found, 1e-12) == []


POOLS = {
    "set transformer": lambda: aggr.SetTransformerAggregation(8, 2, 1, 1, heads=2),
    "multiset": lambda: aggr.GraphMultisetTransformer(8, k=3, heads=2),
}


class Pooling(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool
        self.head = nn.LazyLinear(2)

    def forward(self, data):
        return self.head(self.pool(data.x, data.batch))


# Every second case: each pool with each path, traced or not.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("pool", "known", "path"),
    [
        pytest.param(pool, known, path, id=f"{path}-{'counts known' if known else 'traced'}-{pool}")
        for at, path in enumerate(("dense", "size-classed", "varlen"))
        for number, pool in enumerate(POOLS)
        for known in ((True, False) if (at + number) % 2 else (False, True))
    ],
)
def test_pools_by_attention_in_blocks_equal_plain_pyg(pool, known, path, monkeypatch):
    """Blocks by size return the graphs in their order."""
    torch.manual_seed(0)
    model = Pooling(POOLS[pool]()).double()
    model(Batch.from_data_list(BATCH.to_data_list()))
    monkeypatch.setattr("support.parity.BATCH", BATCH)
    expected = plain_step(model, forward, BATCH)
    sg.convert(model, attention=path)
    padded = poisoned(BATCH, 1000.0)
    if known:
        found, _ = static_step(model, forward, padded)
    else:
        found, trace = static_step(model, forward, unknown_counts(padded), trace=True)
        assert trace.static, (trace.error, trace.obstacles)
    assert differences(expected, found, 1e-12) == []


def test_a_layer_with_options_that_a_path_lacks_is_refused_by_name():
    """And ``auto`` takes another path and reports that reason."""
    dropping = AttentionSetting(dropout=0.5)
    with pytest.raises(sg.NotStatic, match="attention='varlen' is impossible here: it has no dr"):
        attention_path(BATCH.capacity, "varlen", dropping)
    ruled_out = dict(attention_path(BATCH.capacity, "auto", dropping).ruled_out)
    assert "drops 0.5 of the weights" in ruled_out["varlen"]
    with pytest.raises(sg.NotStatic, match="give each graph a key"):
        attention_path(
            BATCH.capacity,
            "varlen",
            AttentionSetting(extra_keys="bias_k and bias_v give each graph a key"),
        )
    model = sg.convert(Attending().double(), attention="varlen")
    model.gps.attn.dropout = 0.5
    with pytest.raises(sg.NotStatic, match="no dropout"):
        static_step(model, forward, unknown_counts(BATCH))
    static_step(model.eval(), forward, unknown_counts(BATCH))  # no dropout in evaluation


CUDA = AttentionSetting("cuda", "float32", 16)
LARGE = sg.Capacity(20_001, 40_000, 41, 4_000)  # a few graphs of thousands of nodes


def test_auto_takes_the_fewest_entries():
    """Molecules take blocks; graphs of thousands of nodes, much larger than a tile, do not."""
    molecules = sg.Capacity(
        3288, 7078, 129, 222, order_statistics=((0, 222), (2, 117), (8, 59), (50, 28))
    )
    assert attention_path(molecules, "auto", CUDA).name == "size-classed"
    large = attention_path(LARGE, "auto", CUDA)
    assert large.name == "varlen"
    assert large.entries * WORTH_IT <= 100 * min(cost for _, cost in large.costs)
    assert attention_path(LARGE, "auto", CUDA._replace(dropout=0.1)).name == "size-classed"


def test_varlen_writes_nothing_in_the_padding_and_reads_nothing_there(monkeypatch):
    """A stand-in for the CUDA kernel leaves NaN outside of graphs, forward and backward, and is
    called with the starts of the real graphs and the bucket's longest graph."""
    calls = []

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, starts, longest):
            calls.append((starts.clone(), longest))
            ctx.save_for_backward(q, k, v, starts)
            out = torch.full_like(q, torch.nan)
            for begin, end in pairwise(starts.tolist()):
                graph = (t[begin:end].transpose(0, 1) for t in (q, k, v))
                out[begin:end] = nn.functional.scaled_dot_product_attention(*graph).transpose(0, 1)
            return out

        @staticmethod
        def backward(ctx, grad):
            *inputs, starts = ctx.saved_tensors
            last = int(starts[-1])
            owner = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
            with torch.enable_grad():
                own = [t[:last].detach().requires_grad_() for t in inputs]
                found = torch.autograd.grad(pair_by_pair(*own, owner), own, grad[:last])
            wide = [torch.full_like(t, torch.nan) for t in inputs]
            for full, part in zip(wide, found, strict=True):
                full[:last] = part
            return *wide, None, None

    monkeypatch.setattr(attention_paths, "varlen_attention", Kernel.apply)
    monkeypatch.setattr("support.parity.BATCH", BATCH)
    torch.manual_seed(0)
    model = Attending().double()
    expected = plain_step(model, forward, BATCH)
    sg.convert(model, attention="varlen")
    batch = unknown_counts(poisoned(BATCH, 1000.0))
    with Restored():
        sg.nn.context_of(model).enter(batch)
        out = model(batch)
        loss = (out - batch.y).square().mean(1)[batch.graph_mask].mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(out[batch.graph_mask], expected.values["out"])
    ((starts, longest),) = calls
    ends = torch.tensor(SIZES).cumsum(0)
    padding = ends[-1:].expand(14 - len(SIZES))
    assert starts.tolist() == [0, *ends.tolist(), *padding.tolist()]
    assert starts.dtype == torch.int32
    assert longest == 60


@pytest.mark.parametrize("path", ["varlen", "kernel"])
def test_a_path_without_blocks_is_fitted_without_pairs(path, esol):
    """The probe finds a form without a ``G * M * M`` term where no such tensor is allocated."""

    class Model(Attending):
        def forward(self, data):
            return self.head(
                global_add_pool(self.gps(data.x[:, :8].float(), None, data.batch), data.batch)
            )[:, :1]

    memory = sg.probe(
        sg.convert(Model(), attention=path), esol, loss=lambda out, data: (out - data.y).square()
    )
    assert memory.fit.form == "linear"
