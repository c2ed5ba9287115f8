"""Fills the results of benchmarks into the documents, between markers.

    python -m bench.fill_figures bench/results README.md docs/*.md docs/notes/*.md
    python -m bench.fill_figures OUTDIR/results.json README.md docs/*.md docs/notes/*.md

The first form reads a folder of results and replaces the text between ``<!-- results:NAME -->`` and
``<!-- /results -->`` with the tables of :mod:`bench.tables`; ``make figures`` runs it. The text
between ``<!-- gpu:NAME -->`` and ``<!-- /gpu -->`` is the output of :mod:`bench.figures` of a GPU
run: of the folder's ``gpu.json``, or of the file named in the second form; missing results become
"not measured". It also fills each layer's cell in a table of layers with a column ``recorded``. A
run without a GPU changes no figure.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from bench.figures import NOT_MEASURED, RENDERED
from bench.join_results import rehearsed
from bench.tables import TABLES

OF_RESULTS = re.compile(r"(<!-- results:([a-z-]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
MARKED = re.compile(r"(<!-- gpu:([a-z]+) -->\n).*?(<!-- /gpu -->)", re.DOTALL)


def filled(text: str, results: dict[str, Any]) -> str:
    """Returns a document with its ``gpu`` blocks and its layers' cells filled from the results.

    Raises:
        KeyError: if a marker names an unknown figure.
    """

    def block(found: re.Match[str]) -> str:
        name = found[2]
        if name not in RENDERED:
            raise KeyError(f"gpu:{name} is no figure; there are {', '.join(RENDERED)}")
        return f"{found[1]}{RENDERED[name](results)}\n{found[3]}"

    return with_layers(MARKED.sub(block, text), results)


def results_of(folder: Path) -> dict[str, Any]:
    """Returns every file of a folder of results, by its name without the suffix."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def with_tables(text: str, folder: dict[str, Any]) -> str:
    """Returns a document with its ``results`` blocks filled from the folder.

    Raises:
        KeyError: if a marker names an unknown table.
    """

    def block(found: re.Match[str]) -> str:
        name = found[2]
        if name not in TABLES:
            raise KeyError(f"results:{name} is no table; there are {', '.join(TABLES)}")
        return f"{found[1]}{TABLES[name](folder)}\n{found[3]}"

    return OF_RESULTS.sub(block, text)


def with_all(text: str, folder: dict[str, Any]) -> str:
    """Returns a document with the tables of a folder, and those of its GPU run."""
    return filled(with_tables(text, folder), folder.get("gpu", {}))


def with_layers(text: str, results: dict[str, Any]) -> str:
    """Returns a document with the cells of a column ``recorded`` filled, row by row."""
    part = results.get("layers", {})
    if part.get("device", "cpu").startswith("cpu"):
        return text
    known = part.get("layers", {}).get("layers", {})
    lines, place = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "recorded" in cells and cells[0] == "layer":
            place = cells.index("recorded")
        elif not line.startswith("|"):
            place = None
        elif place is not None and cells[0] in known and len(cells) > place:
            cells[place] = known[cells[0]].get("recorded", NOT_MEASURED)
            line = "| " + " | ".join(cells) + " |"
        lines.append(line)
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("results", type=Path, help="a folder, or the results.json of a GPU run")
    parser.add_argument("documents", type=Path, nargs="+")
    options = parser.parse_args()
    of_folder = options.results.is_dir()
    results = results_of(options.results) if of_folder else json.loads(options.results.read_text())
    gpu = results.get("machine", {}).get("gpu", "none")
    if not of_folder and (gpu == "none" or rehearsed(results)):
        parser.error(f"{options.results} is of a machine without a GPU: nothing to fill in")
    for document in options.documents:
        before = document.read_text()
        after = with_all(before, results) if of_folder else filled(before, results)
        if after != before:
            document.write_text(after)
        marks = len(OF_RESULTS.findall(before)) * of_folder + len(MARKED.findall(before))
        print(f"{document}: {marks} marked, {'changed' if after != before else 'unchanged'}")


if __name__ == "__main__":
    main()
