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
``--cached``. ``sample`` compares with PyG's NeighborLoader if pyg-lib or torch-sparse is installed,
otherwise with a plain Python twin, and reports which. Before timing, samples are compared with the
twin's. Every result goes to stdout as JSON, and with ``--save`` to ``bench/results``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

from bench.machine import machine
from bench.outofcore_disk import disk, disk_child
from bench.outofcore_near import near
from bench.outofcore_nodes import BUFFERS, CASES, nodes
from bench.outofcore_policies import policies
from bench.outofcore_sampling import hops, sample
from bench.outofcore_sort import sort

RESULTS = Path(__file__).parent / "results"
WHAT = {"sort": sort, "sample": sample, "hops": hops, "disk": disk, "disk-child": disk_child,
        "nodes": nodes, "near": near, "policies": policies}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=tuple(WHAT))
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=1 << 22)
    parser.add_argument("--limit-mib", type=int)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--kind", choices=("memory", "disk"))
    parser.add_argument("--cached", action="store_true", help="disk: use the page cache")
    parser.add_argument("--graph", nargs="*", choices=tuple(CASES), help="nodes, near")
    parser.add_argument("--policy", nargs="*", choices=("NodeCache", "Dispersed"), help="nodes")
    parser.add_argument(
        "--near", action="store_true", help="nodes: NodeCache with near partitions as well"
    )
    parser.add_argument("--buffers", nargs="*", type=int, default=BUFFERS, help="nodes")
    parser.add_argument("--seeds", type=int, default=10, help="nodes, near")
    parser.add_argument("--seed", type=int, default=0, help="policies")
    parser.add_argument("--ranks", action="store_true", help="policies: MRR after the last epoch")
    parser.add_argument("--scratch", default=tempfile.gettempdir())
    parser.add_argument("--save", action="store_true", help="also write to bench/results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = WHAT[args.what](args)
    if args.what != "disk-child":
        command = " ".join(["python -m bench.bench_outofcore", *sys.argv[1:]])
        result |= {"command": command, **machine()}
    text = json.dumps(result, indent=1)
    print(text)
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"outofcore_{args.what}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
