"""The C++ half: a device guard and CUDA hooks that do nothing, built once, loaded before torch.

The compiled file is kept in the cache folder of the library and named by torch's version and a hash
of its source, so that a new torch version or a new guard is built again. No function of this file
may import torch: torch creates its hooks once, when it is first imported.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from staticgraph.errors import DryRunUnavailable

# Versions that were seen to pass the self-test. Others are tried, and the report says so.
TRIED = ("2.11", "2.13", "2.14")
COMPILERS = ("g++", "c++", "clang++")


def compiler() -> str | None:
    """The C++ compiler that builds the guard: ``$CXX``, or the first of the usual names."""
    return next((path for name in (os.environ.get("CXX", ""), *COMPILERS)
                 if name and (path := shutil.which(name))), None)  # fmt: skip


def torch_version() -> str:
    """The version of the installed torch, without importing it."""
    return importlib.metadata.version("torch")


def release(version: str) -> str:
    """The release of a version, such as ``2.13`` for ``2.13.0+cpu``."""
    return ".".join(version.split("+")[0].split(".")[:2])


def why_not() -> str | None:
    """The reason why no dry run works here; None where one may."""
    if sys.platform != "linux":
        return f"a dry run needs Linux, and this is {sys.platform}: its compilers are Linux's"
    if importlib.util.find_spec("triton") is None:
        return "a dry run compiles with Triton, which is not installed: pip install triton"
    if compiler() is None:
        return (
            "a dry run builds a small C++ file, and there is no compiler: install g++ (apt-get "
            "install g++), or name one with CXX=..."
        )
    if tuple(map(int, release(torch_version()).split("."))) < (2, 11):
        return f"a dry run needs torch 2.11 or later; this is {torch_version()}"
    return None


def caveat() -> str | None:
    """A sentence about what is uncertain in a dry run here; None where nothing is."""
    if release(torch_version()) in TRIED:
        return None
    return (
        f"the dry run was tried with torch {', '.join(TRIED)}, and this is {torch_version()}: "
        "python -m staticgraph.dryrun.selftest says whether it still works"
    )


SOURCE = Path(__file__).with_name("guard.cpp")
# In the same cache as the data sets (staticgraph.datasets.CACHE).
FOLDER = Path("~/.cache/staticgraph/dryrun")
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
        DryRunUnavailable: the compiler failed.
    """
    version = torch_version()
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    out = (folder or FOLDER).expanduser() / f"guard-{version}-{digest}.so"
    if out.exists():
        return out
    command = compiler()
    assert command is not None, "why_not() comes first"
    out.parent.mkdir(parents=True, exist_ok=True)
    torch = torch_folder()
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        library = Path(scratch) / "guard.so"
        done = subprocess.run(
            [command, "-std=c++20", "-shared", "-fPIC", f"-I{torch / 'include'}",
             f"-L{torch / 'lib'}", str(SOURCE), "-lc10", "-ltorch_cpu", "-o", str(library)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DryRunUnavailable(
                f"{command} could not build the dry run's guard for torch {version}:\n"
                + done.stderr[-2000:]
            )
        os.replace(library, out)  # atomic, also where two processes build
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
