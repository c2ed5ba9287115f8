"""Runs independent measurements one by one: each leaves a result or error and stops no other."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.machine import write
from staticgraph.runner.counters import device_name


def answer(
    parts: Mapping[str, Callable[[], dict[str, Any]]],
    out: Path | None,
    deadline_s: float,
    found: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Runs each part, prints its result, and writes all results after every part.

    Args:
        parts: the parts by name, most important first.
        out: a JSON file, or None.
        deadline_s: seconds after which no part begins.
        found: results that stand before these in the file; by default the device.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    named = {"device": device_name(device)}
    answers: dict[str, Any] = named if found is None else dict(found)
    until = time.monotonic() + deadline_s
    for name, part in parts.items():
        started = time.monotonic()
        if started > until:
            answers[name] = {"error": "not begun before the deadline"}
        else:
            try:
                answers[name] = part()
            except Exception as error:
                traceback.print_exc()
                answers[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            answers[name]["seconds"] = round(time.monotonic() - started, 1)
        print(f"{name}: {json.dumps(answers[name], default=str)}", flush=True)
        if out is not None:
            write(out, answers)
    return answers
