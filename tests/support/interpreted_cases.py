"""Every operator's Triton code, run by Triton's interpreter on the CPU, against its reference.

The comparison of the CPU's kernels (``test_kernels_records.py``) with the Triton ones in their
place, and what its cases do not reach. Started by test_kernels_triton.py in a separate process,
since ``TRITON_INTERPRET`` must be set before Triton is imported. What is compared outside of the
cases may be off by a few units in the last place of the largest value, times the terms of the
longest sum.
"""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.data import Data

assert os.environ.get("TRITON_INTERPRET") == "1"

import staticgraph as sg  # noqa: E402
from staticgraph import rewrites  # noqa: E402
from staticgraph.kernels import edges, order_edges  # noqa: E402
from staticgraph.kernels.batch_norm import gpu as norm  # noqa: E402
from staticgraph.kernels.batch_norm import op as norm_op  # noqa: E402
from staticgraph.kernels.graph_attention import draw_mask as draw_weights_mask  # noqa: E402
from staticgraph.kernels.graph_attention import (  # noqa: E402
    graph_attention,
    graph_attention_reference,
)
from staticgraph.kernels.linear import limits, linear, linear_reference  # noqa: E402
from staticgraph.kernels.linear import small as small_dense  # noqa: E402
from staticgraph.kernels.neighbours import op as neighbours_op  # noqa: E402
from staticgraph.kernels.register import CUDA, LIBRARY  # noqa: E402
from staticgraph.kernels.table_sum import gpu as table  # noqa: E402
from support.attending import assert_drops_its_share  # noqa: E402
from support.dryrun_models import MovingAtoms, forces_loss  # noqa: E402
from support.kernel_cases import COMPARED, DTYPES, ON_CPU, Sizes  # noqa: E402
from support.kernel_oracle import SAMPLES, assert_running_statistics, wrong_results  # noqa: E402
from support.random_forward import RandomForward  # noqa: E402
from support.rewritten import captured, difference, fired, runs, seeded  # noqa: E402
from support.runners import sgd_runner  # noqa: E402
from support.sampled import in_turn  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def triton_in_place_of_loops():
    for name, kernel in CUDA.items():
        LIBRARY.impl(name, kernel, "CPU", allow_override=True)
    with patch.multiple(neighbours_op, _PLAIN=(), _on_cpu=None):
        yield


def close(actual: torch.Tensor, expected: torch.Tensor, terms: int) -> bool:
    """Tests the error against the rounding of ``terms`` float32 additions and of the dtype."""
    scale = expected.abs().max().item() + 1e-30
    bound = terms * torch.finfo(torch.float32).eps + torch.finfo(actual.dtype).eps
    return bool((actual.double() - expected).abs().max() <= bound * scale)


# Samples of many edges, or of few, in either dtype.
CALLS = [(d, samples) for samples in (("no edges", "hubs"), ("isolated nodes",)) for d in DTYPES]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("name", "dtype", "samples"), in_turn(sorted({*COMPARED} - {*ON_CPU}), CALLS)
)
def test_triton_is_the_reference(name, dtype, samples):
    wrong = [line for sample in samples for line in wrong_results(name, sample, dtype)]
    assert not wrong, "\n".join(wrong)


def test_counts_on_the_matrix_unit_lose_nothing():
    """One row per entry: the gradient must be exact to the last bit of float32.

    The magnitudes do not fit into one bfloat16 together.
    """
    grad = torch.randn(70, 20) * 10.0 ** torch.randint(-6, 7, (70, 20))
    index = torch.randperm(70)[:, None]
    gradient = table.backward(grad, index, torch.tensor([0, 70]), 70)
    assert torch.equal(gradient[index[:, 0]], grad)


def test_an_index_outside_its_table_shows():
    index, offsets = torch.tensor([[0, 1], [0, 2]]), torch.tensor([0, 1, 3])
    out = CUDA["table_sum"](index, offsets, torch.ones(3, 4))
    assert torch.isfinite(out[0]).all()
    assert torch.isnan(out[1]).all()


@pytest.mark.parametrize("work", [order_edges.MAX_WORK, 0])
def test_edges_are_ordered_as_on_a_cpu(work, monkeypatch):
    """Counted, and sorted by torch where there are many; unsorted edges, one node has most."""
    monkeypatch.setattr(order_edges, "MAX_WORK", work)
    for sources, targets, count in ((1, 1, 0), (1, 1, 3), (5, 70, 1300), (70, 5, 513)):
        src, dst = (torch.randint(n, (count,)) for n in (sources, targets))
        dst[count // 3 :] = targets - 1
        expected = edges._on_cpu(src, dst, sources, targets)
        ours = CUDA["order_edges"](src, dst, sources, targets)
        assert all(map(torch.equal, ours, expected))
        for wrong in ([src, dst + targets], [src - sources, dst]) if count else ():
            with pytest.raises(RuntimeError, match="joins a node outside"):
                CUDA["order_edges"](*wrong, sources, targets)


# Running statistics in single precision: half precisions round more than n / (n - 1) adds.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("batch_norm running", torch.float32),
        ("batch_norm", torch.bfloat16),
    ],
)
def test_a_norm_in_chunks_is_the_reference(name, dtype, monkeypatch):
    """Four chunks of three blocks, the last incomplete; rows of padding in the last two chunks."""
    monkeypatch.setattr(norm_op, "ONE_LAUNCH_ROWS", 0)
    monkeypatch.setattr(norm, "MAX_PARTIALS", 4)
    monkeypatch.setitem(SAMPLES, "chunks", (Sizes(300, 0, 9), 2, 19))
    options = norm._chunks(torch.empty(300, 38))
    assert (options["chunks"], options["rows_a_chunk"]) == (4, 96)
    assert wrong_results(name, "chunks", dtype) == []


def test_partial_statistics_of_a_full_grid_join_without_loss():
    """All 64 chunks, the last without real rows, and a mean of a thousand times the spread."""
    rows, real = 2048 * 2, 3300
    x = torch.randn(rows, 4) + 1000
    weight, bias, count = torch.ones(4), torch.zeros(4), torch.tensor(real)
    x[real:] = torch.nan
    out, mean, var, _ = norm.forward(x, None, None, weight, bias, count, *(None,) * 4, 1e-5, False)
    wide = x[:real].double()
    assert close(mean, wide.mean(0), 64)
    # Deviations have the rounding error of the values, which are a thousand times as large.
    eps = torch.finfo(torch.float32).eps
    assert ((var - wide.var(0, unbiased=False)).abs() <= 1000 * eps * 4).all()
    assert not out[real:].any()


def test_a_cumulative_mean_of_statistics_is_torchs():
    assert_running_statistics(None, columns=70)


# Not float32 of what is held in bfloat16, since autocast casts to the narrower dtype alone.
HELD = [(torch.float32, torch.float32), (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize(("dtype", "held"), HELD)
@pytest.mark.parametrize(("rows", "width", "columns"), [(163, 33, 17), (32, 64, 66)])
def test_linear_of_few_rows(dtype, held, rows, width, columns, monkeypatch):
    """One chunk, and two chunks of several steps, with ReLU and other gradients of the input and of
    the weight, which is transposed in one case.

    Operands stay in float32 for half-precision results, gradients have the dtypes of the operands.
    Operands have few digits, since the interpreter truncates and the device rounds.
    """
    if rows == 163:
        monkeypatch.setattr(limits, "ROWS_A_CHUNK", 128)
        assert limits.chunks_of(rows) == (2, 128)
    x, into = (torch.randn(2, rows, width) + 0.1).to(dtype).to(held)
    weight, bias = (torch.randn(size).to(dtype).to(held) for size in ((columns, width), columns))
    into_weight = torch.randn(columns, width).to(held)
    weight = weight if rows == 163 else weight.t().contiguous().t()
    grad = torch.randn(rows, columns).to(dtype)
    out = small_dense.forward(x, weight, bias, True, dtype)
    tickets = torch.zeros(limits.TICKETS, dtype=torch.int32)
    slopes = small_dense.backward(grad, x, weight, out, into, into_weight, tickets)
    assert slopes[1].stride() == weight.stride()
    assert not tickets.any(), "the next layer finds them as this one did"
    wide = [t.double().requires_grad_() for t in (x, weight, bias)]
    plain = linear_reference(*wide, False)
    assert out.dtype == dtype
    assert close(out, plain.relu(), width)
    gradients = list(torch.autograd.grad(plain, wide, grad.double() * (out > 0)))
    gradients[:2] = gradients[0] + into, gradients[1] + into_weight
    for ours, exactly, terms in zip(slopes, gradients, (columns, rows, rows), strict=True):
        assert ours.dtype == held
        assert close(ours, exactly, terms)


def test_a_layer_in_a_derivative_is_differentiated_by_the_same_kernel():
    """Forces are a derivative by ``x``, and their loss is differentiated by the weight, which may
    have any layout."""
    wide = torch.randn(17, 40)
    for weight in (wide[:, :33].contiguous(), wide[:, :33], wide.t()[:33].contiguous().t()):
        operands = [torch.randn(70, 33), weight, torch.randn(17)]
        gradients = []
        for layer, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
            x, *weights = leaves = [each.to(dtype).detach().requires_grad_() for each in operands]
            energy = layer(x, *weights).tanh()
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
            loss = force.square().sum() + energy.square().sum()
            gradients.append(torch.autograd.grad(loss, leaves))
        assert all(close(ours, exact, 70) for ours, exact in zip(*gradients, strict=True))


def test_linear_keeps_a_nan_and_reads_no_row_beyond():
    """A non-finite value must appear in its own rows and columns and in no other."""
    x, weight, grad = torch.ones(40, 5), torch.ones(3, 5), torch.ones(40, 3)
    grad[7, 1] = torch.nan
    dx, dweight, dbias = small_dense.backward(grad, x, weight, *(None,) * 4)
    assert torch.isnan(dx).any(1).nonzero().tolist() == [[7]]
    assert torch.isnan(dbias).tolist() == [False, True, False]
    assert torch.isnan(dweight).all(1).tolist() == [False, True, False]


# Graphs of one tile and of several, of exactly one tile, of one node, and empty graphs, also at the
# end; then nine rows of padding.
STARTS = torch.tensor([0, 5, 5, 22, 62, 94, 95, 95, 95], dtype=torch.int32)
REAL = int(STARTS[-1])


def attend(rows, grad, starts, longest):
    """Returns the output of two heads and the gradient of the rows."""
    rows = rows.clone().requires_grad_()
    out = graph_attention(rows, starts, heads=2, longest=longest)
    return out.detach(), torch.autograd.grad(out, rows, grad)[0]


def test_attention_over_several_tiles_reads_no_padding():
    rows, grad = torch.randn(REAL + 9, 3 * 20), torch.randn(REAL + 9, 20)
    rows[REAL:] = torch.nan
    results = attend(rows, grad, STARTS, 40)
    wide = rows.nan_to_num().double().requires_grad_()
    out = graph_attention_reference(wide, STARTS, 2)
    for ours, right in zip(
        results, (out, *torch.autograd.grad(out, wide, grad.double())), strict=True
    ):
        assert close(ours, right, 100)
        assert not ours[REAL:].any()


def test_attention_of_a_graph_has_the_same_bits_whatever_stands_beside_it():
    """Compares a graph alone with one among others in another bucket, forward and backward."""
    rows, grad = torch.randn(REAL + 9, 3 * 20), torch.randn(REAL + 9, 20)
    together, graph = attend(rows, grad, STARTS, 40), slice(22, 62)
    alone = attend(rows[graph], grad[graph], torch.tensor([0, 40, 40]).int(), 70)
    for ours, other in zip(together, alone, strict=True):
        assert torch.equal(ours[graph], other)


def test_dropped_weights_keep_their_share_and_go_by_seed_and_site():
    assert_drops_its_share(draw_weights_mask, nodes=30)


class Elsewhere(str):
    """A device that is CUDA to rewrites, and the CPU to torch."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return other == "cuda"

    def __ne__(self, other):
        return other != "cuda"


@pytest.fixture
def rewritten_for_cuda(monkeypatch):
    """Rewrites graphs as on CUDA, whose operators Triton's interpreter runs here."""
    target = rewrites.RewriteTarget(Elsewhere("cpu"), compiled=False)
    monkeypatch.setattr(rewrites, "RewriteTarget", lambda *_: target)


@pytest.mark.parametrize("seed", range(int(os.environ.get("FORWARDS", "6"))))
def test_a_random_forward_is_plain_pygs(seed, esol, rewritten_for_cuda):
    model = seeded(lambda: RandomForward(seed))
    if not runs(model, esol):
        pytest.skip("plain PyG does not differentiate this forward")
    largest, runner = difference(model, esol)
    assert captured(runner).target.device == "cuda"
    assert largest <= 1e-9, model.steps


def test_forces_of_atoms_whose_edges_are_found_in_the_step(rewritten_for_cuda):
    """Messages and layers, and the derivatives of both twice."""
    random = torch.Generator().manual_seed(0)
    atoms = [
        Data(
            z=torch.ones(n, dtype=torch.int64),
            pos=2 * torch.randn(n, 3, generator=random).double(),
            y=torch.randn(1, generator=random).double(),
        )
        for n in (2, 3, 5)
    ]
    gradients = []
    for mode in ("eager", "fused"):
        torch.manual_seed(0)
        model = MovingAtoms(2, 8).double()
        model.near.images = (0, 0, 0)
        options = {"loss": forces_loss, "differentiable": ("pos",)}
        runner = sgd_runner(model, [(13, 0, 4)], mode, **options)
        runner.step(next(iter(runner.loader(sg.GraphStore.from_pyg(atoms), exact=False))))
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert captured(runner).target.device == "cuda"
    assert fired(runner)["neighbours"] == 2
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
