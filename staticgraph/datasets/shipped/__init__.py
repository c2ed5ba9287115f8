"""Data sets included in the package, so that first steps need neither a network nor a clone.

The README next to them gives their sources and licences.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
# A clone of the repository has more data sets of graphs, which are known by name there.
CLONE = FOLDER.parents[2] / "examples" / "data"
CLONED = ("hiv", "MUTAG", "NCI1", "PROTEINS")


def shipped() -> dict[str, Path]:
    """Returns the names of the included data sets and of those of a clone, and their files."""
    cloned = {name: CLONE / f"{name}.npz" for name in CLONED if (CLONE / f"{name}.npz").exists()}
    return {**{path.stem: path for path in sorted(FOLDER.glob("*.npz"))}, **cloned}
