"""Prints the date, device and versions of a run; fails if the suite cannot run at all.

python -m bench.machine [--gpu]        with --gpu, a working CUDA device is required
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module

import numpy
import torch
import torch_geometric

import staticgraph
from bench.rehearsal import REHEARSAL

ASKED = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")


def gpu() -> str:
    """Returns name, driver and memory, or "none" if there is no driver."""
    try:
        said = subprocess.run(ASKED, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return said.stdout.strip().splitlines()[0] if said.stdout.strip() else "none"


def versions() -> str:
    """Returns the versions of Python and of the packages that compute."""
    import numba

    found = {
        "torch": torch.__version__,
        "pyg": torch_geometric.__version__,
        "numba": numba.__version__,
        "numpy": numpy.__version__,
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = "none"
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"python {sys.version.split()[0]}, {named}, cuda {torch.version.cuda}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", action="store_true")
    options = parser.parse_args()
    print(f"date: {datetime.now(UTC):%Y-%m-%dT%H:%MZ}")
    print(f"gpu: {'none' if REHEARSAL else gpu()}")
    print(f"versions: {versions()}")
    print(f"from: {staticgraph.__file__}")
    if REHEARSAL:
        print("rehearsal: yes, no figures")
    if options.gpu:
        if not torch.cuda.is_available():
            sys.exit("no CUDA device is visible to torch")
        size = 512
        product = torch.ones(size, size, device="cuda") @ torch.ones(size, size, device="cuda")
        if float(product[0, 0]) != size:
            sys.exit(f"a product of ones on the device gave {float(product[0, 0])}, not {size}")
        import_module("staticgraph.kernels.neighbour_sum.gpu")  # Triton imports


if __name__ == "__main__":
    main()
