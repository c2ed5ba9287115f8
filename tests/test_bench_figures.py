"""Figures of a GPU run enter the documents through a script, between markers, and nowhere else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import fill_figures
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
