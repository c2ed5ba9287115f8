"""The versions of Python and of the packages that a file or a measurement depends on."""

from __future__ import annotations

import platform
from importlib import metadata

# The packages that a plan depends on, and those that a step's time also depends on.
ARITHMETIC = ("staticgraph", "numpy", "numba")
STEPS = ("torch", "torch_geometric")


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Returns the versions of Python and of each package; ``unknown`` if it is not installed."""
    numbers = {"python": platform.python_version()}
    for name in packages:
        try:
            numbers[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            numbers[name] = "unknown"
    return numbers
