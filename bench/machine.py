"""The machine of a measurement; as a script it fails if the suite cannot run at all.

python -m bench.machine [--gpu]        with --gpu, a working CUDA device is required
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import staticgraph
from bench.options import options_of
from bench.rehearsal import REHEARSAL
from staticgraph.files.versions import STEPS, versions
from staticgraph.training import job

RESULTS = Path(__file__).parent / "results"
GPU = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
COMMIT = ("git", "-C", str(RESULTS), "describe", "--always", "--dirty", "--exclude=*")
PACKAGES = (*STEPS, "numba", "numpy", "triton")


def first_line(command: tuple[str, ...]) -> str:
    """Returns the first line that a command prints, or "none" if it fails or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return next(iter(done.stdout.splitlines()), "none")


def machine() -> dict[str, Any]:
    """Returns what every file of results holds: where and when it was measured, and of what."""
    return {**job.machine(), "commit": first_line(COMMIT)}


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes a file of results with the machine and the command that produced them."""
    command = " ".join([f"python -m bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    values = {**machine(), "command": command, **results}
    path.write_text(json.dumps(values, indent=1, default=str) + "\n")


def main() -> None:
    options = options_of(__doc__, gpu=False)
    print(f"date: {datetime.now(UTC):%Y-%m-%dT%H:%MZ}")
    print(f"gpu: {'none' if REHEARSAL else first_line(GPU)}")
    named = ", ".join(f"{name} {version}" for name, version in versions(PACKAGES).items())
    print(f"versions: {named}, cuda {torch.version.cuda}")
    here = machine()
    for key in ("processor", "capability", "threads", "load", "commit"):
        print(f"{key}: {here[key]}")
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
        import_module("staticgraph.kernels.neighbours.gpu")  # Triton imports


if __name__ == "__main__":
    main()
