"""Data sets included in the package, so that first steps need neither a network nor a clone.

The README next to them gives their sources and licences.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Returns the names of the included data sets, and their files."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.npz"))}
