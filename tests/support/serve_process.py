"""``staticgraph serve`` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.patience import patience


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Yields the process, its address, and what it wrote until it served."""
    command = [sys.executable, "-m", "staticgraph.cli", "serve", *options, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            said = ""
            for line in process.stderr or ():
                said += line
                if address := re.search(r"serving .* on (http://127\.0\.0\.1:\d+)", line):
                    yield process, address[1], said
                    return
            raise AssertionError(said)
        finally:
            process.kill()


def answer_of(url: str, body: Any = None) -> str:
    """Returns the answer to a request, which is a POST of JSON if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=patience(60)) as answer:
        return answer.read().decode()


def stopped(process: subprocess.Popen[str], told: signal.Signals = signal.SIGTERM) -> str:
    """Ends the process by a signal and returns the rest of what it wrote."""
    process.send_signal(told)
    rest = process.communicate(timeout=patience(60))[1]
    assert "Traceback" not in rest
    return rest
