"""Damaged files: reading raises one of the library's errors or returns exactly the same data.

It never crashes and never returns other data.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from .artefacts import ARTEFACTS, pristine
from .damage import DAMAGES, Damage
from .subject import Subject


@dataclass(frozen=True)
class Case:
    """An artefact, the damage done to it, and how it is read."""

    artefact: str
    seed: int
    way: int
    damage: Damage


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        Case, st.sampled_from(sorted(ARTEFACTS)), st.integers(0, 1), st.integers(0, 5), DAMAGES
    )


def check(case: Case) -> None:
    artefact = ARTEFACTS[case.artefact]
    whole, other = (pristine(case.artefact, seed) for seed in (case.seed, 1 - case.seed))
    with tempfile.TemporaryDirectory(prefix="fuzz_case_") as scratch:
        folder = Path(scratch) / "it"
        shutil.copytree(whole, folder)
        before = contents(folder)
        case.damage.apply(folder, other)
        if contents(folder) in (before, contents(other)):  # unchanged, or the other data
            return
        try:
            found = artefact.read(folder, case.way)
        except artefact.raises:
            return
        expected = artefact.read(whole, case.way)
        assert same(found, expected), f"other data, without a word: {found} for {expected}"


def contents(folder: Path) -> dict[Path, bytes]:
    """The bytes of all files, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def same(one: Any, two: Any) -> bool:
    """Whether two nested values are equal, bit for bit."""
    if isinstance(one, dict):
        return (
            isinstance(two, dict)
            and one.keys() == two.keys()
            and all(same(value, two[key]) for key, value in one.items())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, torch.Tensor):
        return isinstance(two, torch.Tensor) and same(one.numpy(), two.numpy())
    if isinstance(one, np.ndarray):
        return (
            isinstance(two, np.ndarray)
            and (one.dtype, one.shape) == (two.dtype, two.shape)
            and np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(two).tobytes()
        )
    return type(one) is type(two) and one == two


SUBJECT = Subject("files", cases, check, 60)
