"""Manifests and documents that were edited and got a valid digest again: reading raises one of the
library's errors, or the result can be used in full. Unchecked loops rely on these values."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from staticgraph.files import document

from .artefacts import ARTEFACTS, pristine
from .subject import Subject

# The path of the document of each artefact.
DOCUMENTS = {
    "store": "s/manifest.json",
    "typed": "s/manifest.json",
    "partitioned": "g/manifest.json",
    "relations": "g/manifest.json",
    "plan": "p.json",
    "memory": "memory.json",
    "choices": "c.json",
}
VALUES = (
    st.none() | st.booleans() | st.integers(-3, 12) | st.floats() | st.text(max_size=4)
    | st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 1e308, "9" * 20])
    | st.sampled_from(["node", "edge", "graph", "float32", "int64", "<f4", "O", "a", "../x", "x.y"])
    | st.just([]) | st.just({}) | st.lists(st.integers(-2, 5), max_size=4)
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One value of a document, found by the numbers of its keys, is replaced or removed."""

    artefact: str
    way: int
    place: tuple[int, ...]
    value: Any
    removed: bool


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        st.sampled_from(sorted(DOCUMENTS)),
        st.integers(0, 5),
        st.lists(st.integers(0, 30), min_size=1, max_size=6).map(tuple),
        VALUES,
        st.booleans(),
    )


def changed(values: Any, case: Case) -> None:
    """Replaces or removes the value at the case's place, as deep as the document goes."""
    for depth, number in enumerate(case.place):
        keys = list(values) if isinstance(values, dict) else list(range(len(values)))
        key = keys[number % len(keys)]
        inner = values[key]
        last = depth == len(case.place) - 1 or not isinstance(inner, dict | list) or not inner
        if last and case.removed:
            del values[key]
        elif last:
            values[key] = case.value
        if last:
            return
        values = inner


def check(case: Case) -> None:
    artefact = ARTEFACTS[case.artefact]
    with tempfile.TemporaryDirectory(prefix="fuzz_case_") as scratch:
        folder = Path(scratch) / "it"
        shutil.copytree(pristine(case.artefact, 0), folder)
        path = folder / DOCUMENTS[case.artefact]
        values = document.load(path)
        changed(values, case)
        plain = json.loads(json.dumps(values))
        path.write_text(json.dumps({**plain, document.KEY: document.digest(plain)}))
        with contextlib.suppress(*artefact.raises):
            str(artefact.read(folder, case.way))


SUBJECT = Subject("sealed", cases, check, 60)
