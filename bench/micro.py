"""Times single kernels on a GPU, each recorded and replayed: what to mend first.

    python -m bench.micro --json FILE

The backward of a linear layer by rows, width and rows per chunk, and both products against torch's;
attention by the longest graph that the grid is made for; both norms; and Adam over the parameters
of a GPS model. A figure is the median microseconds of one call among twenty in a recording, the
launches back to back.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.options import options_of
from bench.parts import answer, only_on_cuda
from bench.steps import milliseconds
from staticgraph.kernels.register import CUDA

CALLS = 20
# The nodes of 32 and of 256 molecules of HIV, padding included.
ROWS = (823, 6575)
Case = tuple[str, Callable[[], object]]


def linear(device: str) -> Iterator[Case]:
    """Yields the backward of a layer by rows per chunk, and both forward products."""
    from staticgraph.kernels.linear import limits, small

    def backward(rows_a_chunk: int, *operands: Any) -> None:
        before, limits.ROWS_A_CHUNK = limits.ROWS_A_CHUNK, rows_a_chunk
        try:
            small.backward(*operands)
        finally:
            limits.ROWS_A_CHUNK = before

    tickets = torch.zeros(limits.TICKETS, dtype=torch.int32, device=device)
    for rows in ROWS:
        for width in (64, 300):
            x, weight = (
                torch.randn(rows, width, device=device),
                torch.randn(width, width, device=device),
            )
            for chunk in (1024, 256, 128, 64):
                call = partial(backward, chunk, x, x, weight, x, None, tickets)
                yield f"backward {rows}x{width}, {chunk} rows a chunk", call
            yield f"backward {rows}x{width}, torch", partial(torchs_backward, x, x, weight, x)
            call = partial(small.forward, x, weight, weight[0], False, x.dtype)
            yield f"forward {rows}x{width}, own", call
            yield f"forward {rows}x{width}, torch", partial(F.linear, x, weight, weight[0])


def torchs_backward(grad: Tensor, x: Tensor, weight: Tensor, out: Tensor) -> object:
    """Returns what :func:`small.backward` computes, in torch's operations."""
    grad = grad.masked_fill(out <= 0, 0)
    return grad @ weight, grad.T @ x, grad.sum(0)


def attention(device: str) -> Iterator[Case]:
    """Yields both directions over the same graphs, for a grid of longer and of shorter ones."""
    forward, backward = CUDA["graph_attention"], CUDA["graph_attention_backward"]
    rows = torch.randn(ROWS[0], 3 * 64, device=device)
    starts = torch.linspace(0, ROWS[0], 33, device=device).int()
    for longest in (222, 32):
        out, lse = forward(rows, starts, None, 4, longest, 0, 0.0)
        yield (
            f"attention forward, longest {longest}",
            partial(forward, rows, starts, None, 4, longest, 0, 0.0),
        )
        yield (
            f"attention backward, longest {longest}",
            partial(backward, out, rows, out, lse, starts, None, 4, longest, 0, 0.0),
        )


def norms(device: str) -> Iterator[Case]:
    """Yields the norm in one launch and in two, each for as many rows as it is used for."""
    from staticgraph.kernels.batch_norm import gpu, small

    for rows, norm in ((ROWS[0], small), (ROWS[0], gpu), (ROWS[1], gpu)):
        for width in (64, 300):
            x, ones = torch.randn(rows, width, device=device), torch.ones(width, device=device)
            real, name = torch.tensor(rows, device=device), norm.__name__.rpartition(".")[2]
            forward = (x, None, None, ones, ones, real, None, None, None, None, 1e-5, True)
            yield f"norm forward {rows}x{width}, {name}", partial(norm.forward, *forward)
            backward = (x, x, ones, ones, ones, ones, real, None, 1e-5, True)
            yield f"norm backward {rows}x{width}, {name}", partial(norm.backward, *backward)


def adam(device: str) -> Iterator[Case]:
    """Yields a fused Adam over as many parameters as a GPS of 10x64 has."""
    sizes = [(64, 64)] * 60 + [(192, 64)] * 10 + [(64,)] * 130
    parameters = [torch.nn.Parameter(torch.randn(size, device=device)) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    yield "Adam", torch.optim.Adam(parameters, fused=True, capturable=True).step


def microseconds(call: Callable[[], object]) -> float:
    """Returns the median time of a call in a recording of many."""
    side = torch.cuda.Stream(priority=-1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(CALLS):
            call()
    taken = [milliseconds(lambda _: graph.replay(), 0, 5) for _ in range(9)]
    return 1e3 * statistics.median(taken) / CALLS


def timed(cases: Callable[[str], Iterator[Case]]) -> dict[str, Any]:
    """Times all cases of one kind."""
    return {name: microseconds(call) for name, call in cases("cuda")}


def main() -> None:
    options = options_of(__doc__, json=Path)
    kinds = {"linear": linear, "norms": norms, "attention": attention, "adam": adam}
    parts = {name: only_on_cuda(partial(timed, kind)) for name, kind in kinds.items()}
    answer(parts, options.json)


if __name__ == "__main__":
    main()
