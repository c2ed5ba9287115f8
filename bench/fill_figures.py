"""Fills the results of benchmarks into the documents, between markers.

    python -m bench.fill_figures bench/results README.md docs/*.md docs/notes/*.md
    python -m bench.fill_figures OUTDIR/results.json README.md docs/*.md docs/notes/*.md

The first form reads a folder of results and replaces the text between ``<!-- results:NAME -->`` and
``<!-- /results -->`` with the tables of :mod:`bench.tables`; ``make figures`` runs it. The text
between ``<!-- gpu:NAME -->`` and ``<!-- /gpu -->`` is the output of :mod:`bench.figures` of a GPU
run: of the folder's ``gpu.json``, or of the file named in the second form; missing results become
"not measured". A run without a GPU changes no figure.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.figures import RENDERED
from bench.tables import TABLES

Tables = Mapping[str, Callable[[Any], str]]


def filled(text: str, marker: str, tables: Tables, results: dict[str, Any]) -> str:
    """Returns a document with its blocks of one marker filled from the results.

    Raises:
        KeyError: if a marker names an unknown figure.
    """

    def block(place: re.Match[str]) -> str:
        name = place[2]
        if name not in tables:
            raise KeyError(f"{marker}:{name} is no figure; there are {', '.join(tables)}")
        return f"{place[1]}{tables[name](results)}\n{place[3]}"

    marked = rf"(<!-- {marker}:([a-z-]+) -->\n).*?(<!-- /{marker} -->)"
    return re.sub(marked, block, text, flags=re.DOTALL)


def results_of(folder: Path) -> dict[str, Any]:
    """Returns every file of a folder of results, by its name without the suffix."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def with_all(text: str, folder: dict[str, Any]) -> str:
    """Returns a document with the tables of a folder, and those of its GPU run."""
    return filled(filled(text, "results", TABLES, folder), "gpu", RENDERED, folder.get("gpu", {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="a folder, or the results.json of a GPU run")
    parser.add_argument("documents", type=Path, nargs="+")
    options = parser.parse_args()
    of_folder = options.results.is_dir()
    results = results_of(options.results) if of_folder else json.loads(options.results.read_text())
    here = results.get("machine", {})
    if not of_folder and (here.get("gpu", "none") == "none" or "rehearsal" in here):
        parser.error(f"{options.results} is of a machine without a GPU: nothing to fill in")
    for document in options.documents:
        before = document.read_text()
        after = with_all(before, results) if of_folder else filled(before, "gpu", RENDERED, results)
        if after != before:
            document.write_text(after)
        print(f"{document}: {'changed' if after != before else 'unchanged'}")


if __name__ == "__main__":
    main()
