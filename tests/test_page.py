"""The page at ``/`` in a real browser: a SMILES is typed, drawn and predicted, and nothing comes
from elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("rdkit", reason="needs the extra smiles")
uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")

from support.served_run import app_of_run  # noqa: E402
from support.trained_run import trained_run  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update",
    "--window-size=900,800",
)  # fmt: skip
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """Where a model answers."""
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


def until(found: Any) -> Any:
    """What is there at last."""
    ends = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < ends, "it did not come"
        time.sleep(0.05)
    return value


class Browser:
    """A session of WebDriver, in plain HTTP."""

    def __init__(self, port: int, profile: Path) -> None:
        self.base = f"http://127.0.0.1:{port}"
        options = {"binary": BROWSER, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"performance": "ALL"}}
        body = {"capabilities": {"alwaysMatch": wanted}}
        self.base += f"/session/{self.ask('POST', '/session', body)['sessionId']}"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["value"]

    def run(self, script: str) -> Any:
        return self.ask("POST", "/execute/sync", {"script": script, "args": []})

    def find(self, selector: str) -> str:
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        return next(iter(found.values()))

    def type(self, selector: str, text: str) -> None:
        element = self.find(selector)
        self.ask("POST", f"/element/{element}/clear", {})
        self.ask("POST", f"/element/{element}/value", {"text": text})

    def click(self, selector: str) -> None:
        self.ask("POST", f"/element/{self.find(selector)}/click", {})


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    assert DRIVER is not None
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        session = None
        try:
            line = next(line for line in process.stdout if "on port " in line and "started" in line)
            port = int(line.rpartition("port ")[2].strip(" .\n"))
            session = Browser(port, tmp_path_factory.mktemp("profile"))
            yield session
        finally:
            if session is not None:
                session.ask("DELETE", "")
            process.terminate()


OUTPUT = "return document.querySelector('output').textContent"
DRAWN = "const i = document.querySelector('img'); return i.complete ? i.naturalWidth : 0"


def test_a_molecule_is_typed_drawn_and_predicted(browser, address, tmp_path):
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
        assert until(lambda: browser.run(DRAWN)) == 420, "as wide as it was drawn"
        assert browser.run("return document.querySelector('img').alt") == smiles
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
    assert browser.run("return document.querySelector('img').hidden"), "no broken picture"


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
    browser.ask("POST", "/se/log", {"type": "performance"})  # what was before
    browser.ask("POST", "/url", {"url": address})
    browser.type("#smiles", "CCO")
    browser.click("button")
    until(lambda: browser.run(OUTPUT).replace("...", ""))
    until(lambda: browser.run(DRAWN))
    entries = browser.ask("POST", "/se/log", {"type": "performance"})
    events = [json.loads(entry["message"])["message"] for entry in entries]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {f"{address}/", f"{address}/predict", f"{address}/draw?smiles=CCO"} <= asked
    assert all(url.startswith((f"{address}/", "data:")) for url in asked), asked
