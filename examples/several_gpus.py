"""Trains on several GPUs, or in several processes on a CPU.

    torchrun --nproc-per-node 4 examples/several_gpus.py
    torchrun --nproc-per-node 2 examples/several_gpus.py --data examples/data/esol.npz --epochs 2

This is what ``torchrun -m staticgraph.cli train`` does, written out: every process makes the same
model and the same plan; the runner averages the gradients, and its loss is the mean over the graphs
of all ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))  # runs from a source tree without installation

import staticgraph as sg
from staticgraph.distributed.ranks import Ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(Path(__file__).parent / "data" / "hiv.npz"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="of each process")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    ranks = Ranks.of()

    store = sg.datasets.open(args.data, progress=ranks.first)
    binary = set(store.column("y").flatten().tolist()) <= {0.0, 1.0}
    train, val = store.splits["train"], store.splits["val"]
    plan = sg.plan_buckets(store, args.batch_size, indices=train)
    torch.manual_seed(0)
    model = sg.models.build("gine", store, hidden=64, layers=3)
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)

    def loss(out, batch):
        of = F.binary_cross_entropy_with_logits if binary else F.mse_loss
        return of(out.view_as(batch.y), batch.y, reduction="none")

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    runner = sg.StaticGraphRunner(model, plan, loss=loss, optimizer=optimizer)
    runner.warmup(store, progress=ranks.first)
    loader = runner.loader(store, indices=train, shuffle=True)  # this rank's share
    judged = runner.loader(store, indices=val, exact=False)

    for epoch in range(args.epochs):
        losses = [runner.step(batch) for batch in loader]  # each over the graphs of all ranks
        runner.check_finite()
        outs, ys = [], []
        for batch in judged:
            outs.append(runner.eval_step(batch).out[batch.graph_mask].clone())
            ys.append(batch.y[batch.graph_mask].clone())
        out, y = (torch.cat(ranks.gathered(torch.cat(parts))) for parts in (outs, ys))
        if ranks.first:
            known = ~y.isnan()
            mean = torch.stack(losses).mean()
            print(f"epoch {epoch + 1}: loss {mean:.4f}, {int(known.sum())} labels to validate, ",
                  f"mean output {out.mean():.3f}, mean label {y[known].mean():.3f}")  # fmt: skip
    runner.close()  # first, because the group waits for recordings that use it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
