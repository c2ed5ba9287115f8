"""``staticgraph report --html``: one page that needs no other file."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.command import refusal, status_of

import staticgraph as sg
from staticgraph.cli.report import page_of
from staticgraph.training.report import TrainReport

pytestmark = pytest.mark.usefixtures("painted")
SMALL = ["--model", "gin", "--hidden", "8", "--layers", "1", "--batch-size", "32", "--epochs", "2"]
SMALL += ["--compile-mode", "eager"]
# Attributes that make a browser fetch something.
FETCHED = {"src", "href", "xlink:href", "data", "poster", "srcset", "action"}


class Page(HTMLParser):
    """The words and tags of a page, and what it fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in FETCHED]
        if tag not in ("meta", "br", "use", "path", "rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in FETCHED]

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory, esol) -> Path:
    folder = tmp_path_factory.mktemp("page")
    few = sg.GraphStore.from_pyg(esol[:80], name="few<&>", progress=False)
    few.save(folder / "few")
    words = ["train", "--data", str(folder / "few"), *SMALL, "--out", str(folder / "run")]
    assert status_of(words) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def page(run) -> Page:
    assert status_of(["report", str(run), "--html"]) == 0
    return Page((run / "report.html").read_text())


def test_it_fetches_nothing(page, run):
    assert [what for what in page.fetched if not what.startswith("#")] == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not re.search(r"url\((?!#)|@import", (run / "report.html").read_text())


def test_it_has_curves_filling_memory_and_choices(page):
    text = " ".join(" ".join(page.words).split())
    for words in ("Learning", "filling of the fixed shapes", "Memory", "Choices", "Settings"):
        assert words in text
    assert text.lower().count("learning") == 1, "the heading says it"
    assert page.tags.count("svg") == 1
    assert "training loss" in text
    assert "share of the rows that is real (grey: padding)" in text
    assert "host memory at its peak, whole process" in text
    assert "mode eager" in text
    assert "gin on few<&>" in text
    assert "batch_size 32" in text
    assert page.open == []


def test_it_warns_of_a_run_that_diverged(run):
    text = page_of(replace(TrainReport.load(run), diverged=2), run)
    assert "diverged in epoch 2: the loss is not finite" in text


@pytest.mark.parametrize("text", ["", "step,epoch\n", "step,epoch,bucket\n0,a,b\n"])
def test_steps_that_are_none(run, tmp_path, text, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("report.json", "plan.json"):
        (folder / name).write_bytes((run / name).read_bytes())
    (folder / "steps.csv").write_text(text)
    assert "steps.csv" in refusal(["report", str(folder), "--html"], capsys)
    assert not (folder / "report.html").exists()
