"""Figures of a GPU run enter the documents through a script, between markers, and nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import figures, fill_figures
from bench import machine as bench_machine

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDER = fill_figures.results_of(ROOT / "bench" / "results")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_holds_what_the_results_say(page):
    """After a new benchmark run, ``make figures`` brings the page's tables up to date."""
    text = page.read_text()
    assert fill_figures.with_all(text, FOLDER) == text


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


def test_a_step_whose_loss_departs_is_no_figure():
    def row(mode: str, ms: float, agrees: bool = True) -> dict:
        head = {"model": "gine", "batch_size": 32, "precision": "fp32", "mode": mode}
        return {**head, "step_ms": ms, "ratio_to_first": {"median": 8 / ms}, "loss_agrees": agrees}

    wrong, right = row("cuda-graph+kernels", 1.0, agrees=False), row("cuda-graph", 2.0)
    alone = figures.summary({"part": {"rows": [row("pyg", 8.0), wrong, right]}})
    assert alone.splitlines()[-1].split("|")[2:-1] == [
        " 8.00 ms ", f" {figures.NOT_MEASURED} ", " 2.00 ms (cuda-graph) ", " 4.00 ",
        f" {figures.NOT_MEASURED} ",
    ]  # fmt: skip
    beside = [row("pyg", 8.0), wrong, right, row("pad-to-max", 3.0, agrees=False)]
    last = figures.summary({"part": {"rows": beside}}).splitlines()[-1]
    assert "| 3.00 ms (pad-to-max) |" in last
    assert last.endswith("| 1.50 |")
    assert figures.summary({"part": {"rows": [row("pyg", 8.0), wrong]}}) == figures.NOT_MEASURED
