"""Data sets that the package brings, by name: the first steps need neither a network nor a clone.

Where they come from, and under which licence, is in the README next to them.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    """Names that are here, and their files."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.npz"))}
