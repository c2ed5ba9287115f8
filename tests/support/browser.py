"""A session of a real browser, driven by WebDriver in plain HTTP."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromedriver on the path"
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update",
    "--window-size=900,800",
)  # fmt: skip
PATIENCE_S = 60.0


def until(found: Any) -> Any:
    """Waits until ``found`` returns something true, and returns it."""
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

    def asked(self) -> set[str]:
        """Returns the addresses requested since the last call."""
        entries = self.ask("POST", "/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return {
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        }


@contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """Opens a browser with an empty folder as its profile, and closes it at the end."""
    assert DRIVER is not None
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        session = None
        try:
            line = next(line for line in process.stdout if "on port " in line and "started" in line)
            port = int(line.rpartition("port ")[2].strip(" .\n"))
            session = Browser(port, profile)
            yield session
        finally:
            if session is not None:
                session.ask("DELETE", "")
            process.terminate()
