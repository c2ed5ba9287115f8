"""One graph larger than memory: sorting, sampling, static hops, training from disk, and accuracy.

    export OMP_NUM_THREADS=1
    python -m bench.bench_outofcore sort --edges 100000000 --nodes 10000000 --limit-mib 2048
    python -m bench.bench_outofcore sample
    python -m bench.bench_outofcore hops
    python -m bench.bench_outofcore disk --edges 1000000 --limit-mib 1600
    python -m bench.bench_outofcore policies --rounds 3
    python -m bench.bench_outofcore nodes
    python -m bench.bench_outofcore near --seeds 5

Each subcommand is implemented in ``outofcore_*.py``. ``sort`` and ``disk`` limit the address space
(``ulimit -v``) after the libraries are loaded, ``disk`` in a child process. ``disk`` also shows
that training in memory does not fit the same limit, and bypasses the page cache unless
``--cached``. ``sample`` compares with PyG's NeighborLoader if pyg-lib or torch-sparse is installed.
Every result goes to stdout as JSON, and with ``--save`` to ``bench/results``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

from bench.machine import machine
from bench.options import options_of
from bench.outofcore_disk import disk, disk_child, sort
from bench.outofcore_nodes import BUFFERS, near, nodes
from bench.outofcore_policies import policies
from bench.outofcore_sampling import hops, sample

RESULTS = Path(__file__).parent / "results"
WHAT = {"sort": sort, "sample": sample, "hops": hops, "disk": disk, "disk-child": disk_child,
        "nodes": nodes, "near": near, "policies": policies}  # fmt: skip


def main() -> None:
    what, words = "".join(sys.argv[1:2]), sys.argv[2:]
    if what not in WHAT:
        sys.exit(f"{__doc__}\ngive one of: {', '.join(WHAT)}")
    args = options_of(
        __doc__, words, edges=2_000_000, nodes=1_000_000, rounds=3, partitions=64, chunk=1 << 22,
        limit_mib=int, batch_size=1024, batches=20, dimension=64, epochs=1, kind=str, cached=False,
        graph=[], policy=[], near=False, buffers=BUFFERS, seeds=10, seed=0, ranks=False,
        scratch=tempfile.gettempdir(), save=False,
    )  # fmt: skip
    torch.set_num_threads(1)
    result = WHAT[what](args)
    if what != "disk-child":
        command = " ".join(["python -m bench.bench_outofcore", *sys.argv[1:]])
        result |= {"command": command, **machine()}
    text = json.dumps(result, indent=1)
    print(text)
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"outofcore_{what}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
