"""Makes a runner from options of a subject, a recording or the runner itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import staticgraph as sg
from staticgraph.steps.computation.model_setup import Subject
from support.alike import sgd, squared
from support.arena import ArenaRecorder

SUBJECT = {field.name for field in dataclasses.fields(Subject)}
RECORDING = {field.name for field in dataclasses.fields(sg.Recording)}


def made_runner(model: Any, plan: Any, mode: Any = "auto", **options: Any) -> sg.StaticGraphRunner:
    """Makes a runner and passes each option to the object that takes it.

    Mode ``cuda-graph`` records in an arena unless a recorder is given.
    """
    if mode == "cuda-graph":
        options = {"recorder": ArenaRecorder, **options}
    subject = {name: value for name, value in options.items() if name in SUBJECT}
    recording = {name: value for name, value in options.items() if name in RECORDING}
    rest = {k: v for k, v in options.items() if k not in SUBJECT | RECORDING}
    return sg.StaticGraphRunner(
        Subject(model, **subject), plan, mode, recording=sg.Recording(**recording), **rest
    )


def sgd_runner(
    model: Any,
    plan: Any,
    mode: Any = "eager",
    loss: Any = squared,
    rate: float = 0.0,
    **options: Any,
) -> sg.StaticGraphRunner:
    """Makes a runner whose steps train with SGD; the model stays what it is at a rate of 0."""
    return made_runner(model, plan, mode, loss=loss, optimizer=sgd(model, rate), **options)
