"""Whether a dry run works here, and if not, why; checked before any process is started."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys

# Versions that were seen to pass the self-test. Others are tried, and the report says so.
TRIED = ("2.13",)
COMPILERS = ("g++", "c++", "clang++")


def compiler() -> str | None:
    """The C++ compiler that builds the guard: ``$CXX``, or the first of the usual names."""
    return next((found for name in (os.environ.get("CXX", ""), *COMPILERS)
                 if name and (found := shutil.which(name))), None)  # fmt: skip


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
