"""The page at ``/`` in a real browser: it predicts a SMILES and fetches nothing else."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("rdkit", reason="needs the extra smiles")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")

from support.browser import PATIENCE_S, Browser, needs_browser, opened, until  # noqa: E402
from support.served_app import app_of_run  # noqa: E402
from support.trained_run import trained_run  # noqa: E402

pytestmark = needs_browser


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """The address of a server with a model."""
    folder = trained_run(tmp_path_factory.mktemp("runs") / "esol")
    app = app_of_run(folder, mode="eager", max_wait_ms=0)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as session:
        yield session


OUTPUT = "return document.querySelector('output').textContent"


def test_a_molecule_is_typed_and_predicted(browser, address, tmp_path):
    browser.ask("POST", "/url", {"url": address})
    for smiles in ("c1ccccc1", "CC(=O)Oc1ccccc1C(=O)O"):
        browser.run("document.querySelector('output').textContent = ''")
        browser.type("#smiles", smiles)
        browser.click("button")
        said = until(lambda: browser.run(OUTPUT).replace("...", ""))
        body = json.dumps({"smiles": [smiles]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{address}/predict", body, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            expected = json.load(answer)["outputs"][0][0]
        word, value = said.split()
        assert word == "output"
        assert float(value) == pytest.approx(expected, rel=1e-3), "four digits are shown"
    if folder := os.environ.get("SCREENSHOTS"):
        picture = browser.ask("GET", "/screenshot")
        (Path(folder) / "page.png").write_bytes(b64decode(picture))


def test_what_is_no_molecule_is_said(browser, address):
    browser.ask("POST", "/url", {"url": address})
    browser.type("#smiles", "not a molecule <b>")
    browser.click("button")
    said = until(lambda: browser.run(OUTPUT).replace("...", ""))
    assert "RDKit cannot read" in said
    assert browser.run("return document.querySelectorAll('output *').length") == 0, "it is text"


def test_the_last_one_asked_is_shown_and_a_server_that_is_gone_is_said(browser, address):
    browser.ask("POST", "/url", {"url": address})
    browser.run("""
        window.answers = [];
        window.fetch = () => new Promise((done, gone) => answers.push([done, gone]));
        const made = (v) => ({ok: true, json: async () => ({outputs: [[v]]})});
        window.answer = (k, v) => answers[k][0](made(v));
    """)
    browser.click("button")
    browser.click("button")
    browser.run("answer(1, 2)")
    assert until(lambda: browser.run(OUTPUT).replace("...", "")) == "output 2.000"
    browser.run("answer(0, 1)")
    assert browser.run(OUTPUT) == "output 2.000", "an answer that came late is not that of this one"
    browser.click("button")
    browser.run("answers[2][1](new TypeError('no network'))")
    until(lambda: browser.run(OUTPUT) == "the server does not answer")


def test_nothing_comes_from_elsewhere(browser, address):
    browser.asked()
    browser.ask("POST", "/url", {"url": address})
    browser.type("#smiles", "CCO")
    browser.click("button")
    until(lambda: browser.run(OUTPUT).replace("...", ""))
    asked = browser.asked()
    assert {f"{address}/", f"{address}/predict"} <= asked
    assert all(url.startswith((f"{address}/", "data:")) for url in asked), asked
