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
from bench.rehearsal import REHEARSAL
from staticgraph.runner.counters import device_name

Part = Callable[[], dict[str, Any]]


def only_on_cuda(part: Part, rehearsed: bool = False) -> Part:
    """Returns a part that says so where it needs CUDA; one that can be rehearsed runs then."""
    if torch.cuda.is_available():
        return part
    if rehearsed and REHEARSAL:
        return lambda: {**part(), "rehearsal": True}
    return lambda: {"answer": "needs a CUDA device"}


def answer(
    parts: Mapping[str, Part],
    out: Path | None,
    head: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Runs each part, prints its result, and writes all results, also after every part.

    Args:
        parts: the parts by name, most important first.
        out: a JSON file, or None.
        head: results that stand before these in the file; by default the device.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    answers = {"device": device_name(device)} if head is None else dict(head)
    if out is not None:
        write(out, answers)
    for name, part in parts.items():
        started = time.monotonic()
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
