"""The C++ half: a device guard and CUDA hooks that do nothing, built once, loaded before torch.

The compiled file is kept in the cache folder of the library and named by torch's version and a hash
of its source, so that a new torch version or a new guard is built again. No function of this file
may import torch: torch creates its hooks once, when it is first imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from staticgraph.dryrun.availability import compiler, release, torch_version
from staticgraph.errors import DryRunUnavailable

SOURCE = Path(__file__).with_name("guard.cpp")
# In the same cache as the data sets (staticgraph.datasets.CACHE).
FOLDER = Path("~/.cache/staticgraph/dryrun")
# From this version on, torch's headers require C++20.
CXX20_SINCE = (2, 12)
LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so")


def torch_folder() -> Path:
    """The folder where torch is installed, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def built(folder: Path | None = None) -> Path:
    """The path of the compiled guard, built first where it does not exist, in about ten seconds.

    Raises:
        DryRunUnavailable: there is no compiler, or it failed.
    """
    version = torch_version()
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    out = (folder or FOLDER).expanduser() / f"guard-{version}-{digest}.so"
    if out.exists():
        return out
    command = compiler()
    if command is None:
        raise DryRunUnavailable("there is no C++ compiler to build the dry run's guard with")
    out.parent.mkdir(parents=True, exist_ok=True)
    torch = torch_folder()
    standard = "c++20" if tuple(map(int, release(version).split("."))) >= CXX20_SINCE else "c++17"
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        made = Path(scratch) / "guard.so"
        done = subprocess.run(
            [command, f"-std={standard}", "-shared", "-fPIC", f"-I{torch / 'include'}",
             f"-L{torch / 'lib'}", str(SOURCE), "-lc10", "-ltorch_cpu", "-o", str(made)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DryRunUnavailable(
                f"{command} could not build the dry run's guard for torch {version}:\n"
                + done.stderr[-2000:]
            )
        os.replace(made, out)  # atomic, also where two processes build
    return out


def load() -> ctypes.CDLL:
    """Loads the guard; must be called before torch is imported.

    Raises:
        DryRunUnavailable: as for :func:`built`.
        RuntimeError: torch is imported already.
    """
    if "torch" in sys.modules:
        raise RuntimeError("the guard is loaded before torch, and torch is imported already")
    path = built()
    for name in LIBRARIES:
        ctypes.CDLL(str(torch_folder() / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path))
