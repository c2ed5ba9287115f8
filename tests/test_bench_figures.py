"""Figures of a GPU run enter the documents through a script, between markers, and nowhere else."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import fill_figures
from bench import machine as bench_machine
from bench.figures import NOT_MEASURED


def row(mode, ms, **more):
    return {
        "model": "gine 5x300",
        "batch_size": 32,
        "precision": "fp32",
        "mode": mode,
        "chosen": None,
        "step_ms": ms,
        "p10_ms": ms,
        "p90_ms": ms,
        "graphs_per_second": 32e3 / ms,
        "ratio_to_first": {"median": 6 / ms},
        "times_floor": ms / 0.5,
        "kernels": 100,
        "node_efficiency": 0.98,
        "peak_bytes": 2**20,
        "held_bytes": 0,
        "compiles": 1,
        "warmup_s": 1.0,
        "loss": 0.1,
        "loss_agrees": True,
        **more,
    }


RESULTS = {
    "machine": {"gpu": "NVIDIA H200, 570, 143771 MiB", "versions": "torch 2.11", "date": "2026"},
    "steps": {
        "rows": [
            row("pyg", 6.0),
            row("pad-to-max", 4.0, loss_agrees=False),
            row("cuda-graph", 1.0),
            row("cuda-graph+kernels", 0.5, loss_agrees=False),
            {"model": "gine 5x300", "mode": "auto", "error": "not begun"},
        ]
    },
    "layers": {
        "device": "NVIDIA H200",
        "layers": {"yes": 1, "of": 2, "layers": {"GCNConv": {"recorded": "yes"}}},
    },
}

DOCUMENT = """Before.
<!-- gpu:summary -->
old
<!-- /gpu -->
Between, not measured.

| layer | outputs | recorded | |
|---|---|---|---|
| GCNConv | 0e+00 | not measured | pass |
| SAGEConv | 0e+00 | not measured | pass |

<!-- gpu:pool -->
<!-- /gpu -->
"""


def test_marked_blocks_and_cells_change_and_nothing_else():
    """Only a row whose loss agrees counts as our fastest; what was not run stays not measured."""
    filled = fill_figures.filled(DOCUMENT, RESULTS)
    (told,) = [line for line in filled.splitlines() if line.startswith("| gine")]
    assert told == (
        "| gine 5x300, batch 32, fp32 | 6.00 ms | 4.00 ms (pad-to-max) | 1.00 ms (cuda-graph) | "
        "6.00 | 4.00 |"
    )
    assert "| GCNConv | 0e+00 | yes | pass |" in filled
    assert "| SAGEConv | 0e+00 | not measured | pass |" in filled
    assert f"<!-- gpu:pool -->\n{NOT_MEASURED}\n<!-- /gpu -->" in filled
    assert filled.startswith("Before.\n")
    assert "Between, not measured." in filled
    assert "old" not in filled
    assert fill_figures.filled(filled, RESULTS) == filled


ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDER = fill_figures.results_of(ROOT / "bench" / "results")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_holds_what_the_results_say(page):
    """After a new benchmark run, ``make figures`` brings the page's tables up to date."""
    text = page.read_text()
    assert fill_figures.with_all(text, FOLDER) == text


def test_a_table_follows_its_file_of_results():
    changed = copy.deepcopy(FOLDER)
    changed["training_gine"]["static batches"]["ratio_to_best_pyg"]["median"] = 7.0
    text = "<!-- results:summary -->\n9.99\n<!-- /results -->\n1.25 by hand\n"
    filled = fill_figures.with_tables(text, changed)
    assert "7.00 (" in filled
    assert "9.99" not in filled
    assert filled.endswith("<!-- /results -->\n1.25 by hand\n")


def test_a_file_of_results_and_its_table_name_the_machine(tmp_path):
    bench_machine.write(
        tmp_path / "loader.json", {"PyG": {"graphs_per_second": 1, "p10": 1, "p90": 1}}
    )
    folder = fill_figures.results_of(tmp_path)
    keys = {"processor", "capability", "threads", "load", "commit", "date", "versions"}
    assert keys <= folder["loader"].keys()
    measured = bench_machine.machine()
    last = fill_figures.TABLES["loading"](folder).splitlines()[-1]
    assert f"{measured['processor']} ({measured['capability']}), " in last
    del folder["loader"]["processor"]
    assert "processor not recorded" in fill_figures.TABLES["loading"](folder).splitlines()[-1]
