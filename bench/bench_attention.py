"""Compares the attention paths: counted entries, batches that change buckets, and time on a GPU.

    python -m bench.bench_attention                    entries, by arithmetic; any machine
    python -m bench.bench_attention --epochs 3         and the batches that change buckets
    python -m bench.bench_attention --time [--rounds 20] [--dtype bfloat16]    on a GPU

The timed work is the forward and backward of one GPS layer without its convolution, compiled and
recorded by torch (``reduce-overhead``), over batches of the data set. The paths take turns, and the
outputs of every path are compared with dense before timing starts.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch_geometric.nn import GPSConv

import staticgraph as sg
from bench.interleave import interleave
from staticgraph.epochs.batcher import Batcher
from staticgraph.sizes.attention import PATHS, AttentionSetting, attention_path
from staticgraph.text.table import table

DATA = Path(__file__).parent.parent / "examples" / "data"
SETS = [("hiv", 32), ("hiv", 128), ("hiv", 1024), ("esol", 128), ("PROTEINS", 128), ("NCI1", 128)]
QUANTILES = (0.1, 0.5, 0.9)
CUDA = AttentionSetting("cuda", "float32", 16)


def entries(epochs: int) -> str:
    """Returns the table of counted entries."""
    rows = []
    for name, size in SETS:
        store = sg.datasets.open(DATA / f"{name}.npz")
        plan = sg.plan_buckets(store, size, attention="auto")
        tight, wide = plan.capacities[0], plan.capacities[-1]
        path = attention_path(tight, "auto", CUDA)
        costs, limits = dict(path.costs), dict(attention_path(wide).costs)["size-classed"]
        squares = int((np.asarray(store.sizes)[:, 0].astype(float) ** 2).mean() * size)
        row = [f"{name}, {size}", f"{costs['dense']:,}"]
        row += [f"{100 * c / costs['dense']:.1f}%" for c in (limits, costs["size-classed"])]
        row += [f"{100 * c / costs['dense']:.1f}%" for c in (costs["varlen"], squares)]
        row.append(path.name)
        if epochs:
            batcher = Batcher(store, plan, shuffle=True)
            stats = [batcher.epoch_stats(epoch) for epoch in range(epochs)]
            row.append(f"{sum(s.spilled for s in stats)} of {sum(s.batches for s in stats)}")
        rows.append(row)
    headers = ["data, batch", "dense", "by limits", "by data", "varlen", "squares", "auto"]
    return table([*headers, *(["wider"] * bool(epochs))], rows)


def seconds(name: str, size: int, args: argparse.Namespace) -> str:
    """Returns the table of times for one data set."""
    store = sg.datasets.open(DATA / f"{name}.npz")
    plan = sg.plan_buckets(store, size, attention="auto")
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    loader = sg.StaticLoader(store, plan, device=device)
    batches = [b.clone() for b in islice(loader, args.batches) if b.bucket == 0]
    torch.manual_seed(0)
    layer = GPSConv(args.channels, None, heads=4, norm=None).to(device)
    x = torch.randn(plan.capacities[0].nodes, args.channels, device=device)
    contenders, outs = {}, {}
    for path in PATHS[1:]:
        own = sg.convert(copy.deepcopy(layer), attention=path)
        run = one_layer(own, x, batches[0], dtype)
        with torch.no_grad():
            outs[path] = run(*batches[0].tensors().values())
        off = float((outs[path] - outs["dense"]).abs().max() / outs["dense"].abs().max())
        print(f"{name}, {path}: off by {off:.1e} of the largest from dense")
        if device.type == "cuda":
            run = torch.compile(run, fullgraph=True, dynamic=False, mode="reduce-overhead")
        contenders[path] = partial(train, own, run, batches)
    timed = interleave(contenders, args.rounds, warmup=3)
    rows = [
        (path, *(f"{1e3 * t / len(batches):.3f}" for t in np.quantile(timing.seconds, QUANTILES)))
        for path, timing in timed.items()
    ]
    return table((f"{name}, {size}, {args.dtype}", "p10, ms a batch", "median", "p90"), rows)


def one_layer(
    layer: torch.nn.Module, x: torch.Tensor, like: sg.StaticBatch, dtype: torch.dtype
) -> Callable[..., torch.Tensor]:
    """Returns the layer as a function of a batch's tensors."""
    context = sg.nn.context_of(layer)

    def run(*values: torch.Tensor) -> torch.Tensor:
        batch = sg.StaticBatch(like.layout, dict(zip(like.tensors(), values, strict=True)))
        context.enter(batch)
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype != torch.float32):
            out = layer(x, None, batch.batch)
        context.leave()
        return torch.where(batch.node_mask[:, None], out, 0).float()

    return run


def train(
    layer: torch.nn.Module, run: Callable[..., torch.Tensor], batches: list[sg.StaticBatch]
) -> None:
    """Runs forward and backward over the batches, and waits for the device at the end."""
    for batch in batches:
        layer.zero_grad()
        run(*batch.tensors().values()).square().mean().backward()
    if batches[0].ptr.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args()
    print(entries(args.epochs))
    if args.time:
        for name, size in SETS:
            print(seconds(name, size, args))


if __name__ == "__main__":
    main()
