"""Which versions made a file, or a figure: of Python and of the packages that it depends on."""

from __future__ import annotations

import platform
from importlib import metadata

# What a plan depends on, and what a step's time depends on.
ARITHMETIC = ("staticgraph", "numpy", "numba")
STEPS = ("torch", "torch_geometric")


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Name and version of Python and of each package; ``unknown`` where it is not installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
