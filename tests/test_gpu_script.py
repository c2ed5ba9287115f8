"""bench/gpu.sh without a GPU: every command line parses with the scripts as they are, a call keeps
its limits whatever a part does, and what it could not run is reported."""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.kernel_cases import DTYPES
from support.patience import patience, slowness

import staticgraph as sg
from staticgraph.models import build

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

CALLS = ("first", "second", "third")
# For a machine with several devices, which is never lent: no other call waits for it.
ALL_CALLS = (*CALLS, "ranks")
BUDGET_S = 490
VERSIONS_S = 10  # versions and imports, before the parts
RUN_COMMAND_CHARACTERS = 2000


def gpu_sh(call: str, **environment: object) -> subprocess.CompletedProcess[str]:
    given = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        ["bash", "bench/gpu.sh", call],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable, **given},
        capture_output=True,
        text=True,
        timeout=patience(200),
    )


@functools.cache
def parts(call: str, tiny: int = 0) -> list[tuple[str, int, list[str]]]:
    """Name, seconds and command of each part."""
    done = gpu_sh(call, LIST=1, TINY=tiny)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [(name, int(seconds), command.split()) for name, seconds, command in rows]


class Parsed(Exception):
    """Raised once a command line is accepted."""


def parse(command: list[str], monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """Parse a command line with the script's own parser, without running the script.

    Raises:
        SystemExit: the script does not take these arguments.
    """
    module = importlib.import_module(command[0])
    real, found = argparse.ArgumentParser.parse_args, []

    def parse_args(self, *args, **kwargs):
        found.append(real(self, *args, **kwargs))
        raise Parsed

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patched.setattr(sys, "argv", [command[0], *command[1:]])
        with pytest.raises(Parsed):
            module.main()
    return found[0]


def filled(command: list[str]) -> list[str]:
    places = {"{json}": "part.json", "{deadline}": "30", "{device}": "cuda"}
    return [places.get(word, word) for word in command]


@pytest.mark.parametrize("tiny", [0, 1])
@pytest.mark.parametrize("call", ALL_CALLS)
def test_every_command_line_parses(call, tiny, monkeypatch):
    from bench.steps import Shape

    found = parts(call, tiny)
    assert len(found) >= (5 if call in CALLS else 2)
    for name, _, command in found:
        if command[0] == "tests":
            assert all((ROOT / path).is_file() for path in command[1:]), name
            continue
        options = parse(filled(command), monkeypatch)
        assert options.json, f"{name} leaves no results"
        for text in getattr(options, "models", ()):
            assert Shape.parse(text).layers > 0


def test_pytest_takes_its_options(tmp_path):
    """The options for a device and those for a rehearsal, with the plugins that they need."""
    lines = re.findall(r"pytest=\((.*)\)", (ROOT / "bench" / "gpu.sh").read_text())
    assert len(lines) == 2
    for options in (shlex.split(line) for line in lines):
        (tmp_path / "test_one.py").write_text("def test_cpu():\n    pass\n")
        asked = [sys.executable, "-m", "pytest", "--collect-only", *options, "test_one.py"]
        done = subprocess.run(
            asked, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60)
        )
        assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: none is selected


def test_a_command_line_that_a_script_refuses_is_seen(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        parse(["bench.bench_runner", "--no-such-option"], monkeypatch)
    with pytest.raises(SystemExit):
        parse(["bench.bench_memory", "--device", "tpu"], monkeypatch)


@pytest.mark.parametrize("call", ALL_CALLS)
def test_the_seconds_of_a_call_add_up_to_less_than_it_has(call):
    """The last part may lose the time that versions take; a call ends within nine minutes."""
    found = parts(call)
    assert sum(seconds for _, seconds, _ in found) <= BUDGET_S - VERSIONS_S
    assert len({name for name, _, _ in found}) == len(found), "names are results' keys"
    text = (ROOT / "bench" / "gpu.sh").read_text()
    assert f"tiny ? 1500 : {BUDGET_S}" in text
    after = [int(seconds) for seconds in re.findall(r"timeout (\d+) (?:tar c|\"\$python\")", text)]
    assert after
    assert BUDGET_S + sum(after) < 540


def test_the_cache_is_filled_with_the_models_of_the_first_call(capsys):
    """By dry runs of the same shapes, which a device's process then reads in place of compiling."""
    from bench import steps
    from staticgraph.cli import main

    commands = [command for _, _, command in parts("cache")]
    shapes = {"--models": [], "--batch-sizes": []}
    for _, _, command in parts("first"):
        for option, found in shapes.items():
            found += command[command.index(option) + 1 :][:1] if option in command else []
    for command, shape, size in zip(commands, *shapes.values(), strict=True):
        given = dict(zip(command[2::2], command[3::2], strict=False))
        store = sg.datasets.open(ROOT / given["--data"])
        model = getattr(steps, given["--model"].partition(":")[2])(store)
        shape = steps.Shape.parse(shape)
        torch.manual_seed(0)
        other = build(shape.name, store, hidden=shape.hidden, layers=shape.layers)
        assert str(model) == str(other)
        assert command[command.index("--batch-size") + 1] == size
        with pytest.raises(SystemExit) as ended:
            main([*command[1:], "--help"])
        assert ended.value.code == 0


def test_single_precision_comes_first():
    """Of the kernels' tests, should the time not be enough for all: pytest varies the parameters
    that stand next to the function last."""
    text = (ROOT / "tests" / "test_gpu_kernels.py").read_text()
    above = text.partition("\ndef test_an_operator_equals")[0].splitlines()[-1]
    assert above.startswith('@pytest.mark.parametrize("dtype", DTYPES')
    assert DTYPES[0] == torch.float32


def test_one_model_a_process():
    seen = 0
    for call in ALL_CALLS:
        for name, _, command in parts(call):
            for option in ("--models", "--model", "--batch-sizes", "--precision"):
                if option in command:
                    values = command[command.index(option) + 1 :]
                    others = [i for i, v in enumerate(values) if v.startswith("--")]
                    assert (others or [len(values)])[0] == 1, f"{name}: {option}"
                    seen += 1
    assert seen > 20, "options are called otherwise now"


def test_every_file_with_tests_of_a_gpu_is_run():
    """Such files take their device from support.places; no other file is collected."""
    own = re.compile(r"import DEVICES\b|def test_\w+\([^)]*\bplace\b")
    wanted = {
        f"tests/{path.name}"
        for path in (ROOT / "tests").glob("test_*.py")
        if path != Path(__file__) and own.search(path.read_text())
    }
    ran = [path for call in CALLS for _, _, c in parts(call) if c[0] == "tests" for path in c[1:]]
    assert sorted(ran) == sorted(wanted)


def test_commands_for_a_lent_device_are_in_the_head():
    head = (ROOT / "bench" / "gpu.sh").read_text().partition("set -uo")[0]
    for call in CALLS:
        (line,) = re.findall(rf"#   {call}:\s+(.*)", head)
        assert line.endswith(f"bash bench/gpu.sh {call}")
        assert len(line) < RUN_COMMAND_CHARACTERS


# ---------------------------------------------------------------------- limits

FAKE = """
machine=(echo "rehearsal: yes")
parts_first() {
    part stubborn 3 bash -c 'trap "" TERM; echo asked; sleep 60'
    part good 20 "$python" -c "open('{json}', 'w').write('{\\"rows\\": [1]}')"
    part failing 20 bash -c 'echo broken >&2; exit 7'
    part saved 1 sleep 2
    part after 20 echo still here
    part long 60 sleep 60
    part late 20 echo never
    part later 20 echo never either
}
"""


def slowed(script: str, times: int) -> str:
    """A script with the limits and the sleeps of its parts multiplied by ``times``."""
    return re.sub(
        r"(\bpart \w+|\bsleep) (\d+)",
        lambda found: f"{found[1]} {int(found[2]) * times}",
        script,
    )


def test_a_slow_machine_gives_parts_longer():
    assert slowed("part a 3 bash -c 'sleep 60'; part b 20 x 7", 2) == (
        "part a 6 bash -c 'sleep 120'; part b 40 x 7"
    )


def test_a_call_keeps_its_limits_with_a_part_that_does_not_end(tmp_path):
    """One part ignores the request to end, one fails, one uses the time that others saved, one
    takes all that is left: the others run or are named, results are joined, and the call ends in
    time."""
    times = math.ceil(slowness())
    (tmp_path / "parts.sh").write_text(slowed(FAKE, times))
    out, budget = tmp_path / "out", 14 * times
    began = time.monotonic()
    done = gpu_sh(
        "first",
        PARTS_FROM=tmp_path / "parts.sh",
        OUT=out,
        CACHES=tmp_path / "caches",
        TINY=1,
        PATIENCE=1,
        BUDGET_S=budget,
        LEAST_S=3 * times,
    )
    took = time.monotonic() - began
    log = (out / "log.txt").read_text()
    assert took < budget + patience(15), "joining and saving are all that comes after"
    assert done.returncode == 1
    assert "== good ended with 0" in log
    stubborn = re.search(r"== stubborn ended with (124|137) after (\d+) s", log)
    assert stubborn, log
    assert 2 * times <= int(stubborn[2]) <= 6 * times, log
    assert "== failing ended with 7" in log
    assert "broken" in log, "what goes to the error stream is in the log"
    assert "== saved ended with 0" in log, "what a part does not need the next may take"
    assert "== after ended with 0" in log
    assert "still here" in log
    assert "== long ended with 124" in log
    assert "== late: not run" in log
    assert "never" not in log.replace("echo never", ""), "what was not begun printed nothing"
    assert "not run: late later;" in log
    found = json.loads((out / "results.json").read_text())
    assert found["good"] == {"rows": [1]}
    assert found["not_run"] == ["late", "later"]
    assert "rehearsal" in found["machine"]
    assert (out / "tables.txt").read_text().startswith("REHEARSAL, NO FIGURES")
    assert len(list(out.iterdir())) <= 8, "so many files come back"


ONE = """
machine=(echo "rehearsal: yes")
parts_first() {
    part a 20 bash -c 'mkdir -p "$TRITON_CACHE_DIR"; echo made >"$TRITON_CACHE_DIR/kernel"
        echo 1 >{json}'
}
"""
TWO = """
machine=(echo "rehearsal: yes")
parts_second() {
    part b 20 bash -c 'echo "{\\"found\\": \\"$(cat "$TRITON_CACHE_DIR/kernel")\\"}" >{json}'
}
"""


def test_what_was_compiled_and_found_goes_on_to_the_next_call(tmp_path):
    (tmp_path / "one.sh").write_text(ONE)
    (tmp_path / "two.sh").write_text(TWO)
    shared = {"TINY": 1, "BUDGET_S": 60}
    for call, file, more in (
        ("first", "one.sh", {"CACHES": tmp_path / "caches one"}),
        ("second", "two.sh", {"CACHES": tmp_path / "caches two", "CARRIED": tmp_path / "first"}),
    ):
        done = gpu_sh(call, PARTS_FROM=tmp_path / file, OUT=tmp_path / call, **shared, **more)
        assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "second" / "results.json").read_text())
    assert found["a"] == 1
    assert found["b"] == {"found": "made"}


def test_nothing_runs_where_versions_fail(tmp_path):
    """There is no GPU here, which is the first check."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (tmp_path / "parts.sh").write_text("parts_first() { part never 5 echo ran; }")
    files = {"PARTS_FROM": tmp_path / "parts.sh", "OUT": tmp_path / "out"}
    done = gpu_sh("first", PYTHON=sys.executable, **files)
    assert done.returncode == 1
    assert "no CUDA device is visible to torch" in done.stdout
    assert "== stopped" in done.stdout
    assert "ran" not in done.stdout.split()


def test_a_part_that_is_not_there_is_said(tmp_path):
    (tmp_path / "parts.sh").write_text(ONE.replace("bash -c", "true"))
    done = gpu_sh(
        "first", PARTS_FROM=tmp_path / "parts.sh", OUT=tmp_path / "out", PARTS="b", TINY=1
    )
    assert done.returncode == 1
    assert "== b is no part of the first call" in done.stdout
    assert "== a" not in done.stdout


def test_another_word_than_a_call_is_refused():
    done = gpu_sh("fourth")
    assert done.returncode == 2
    assert "first|second|third" in done.stderr


@pytest.mark.slow
def test_a_step_taken_apart_and_a_row_of_steps_rehearsed(tmp_path):
    """An unchanged part of the first call, on the CPU: labelled, correct and complete."""
    out = tmp_path / "out"
    done = gpu_sh(
        "first",
        PYTHON=sys.executable,
        OUT=out,
        CACHES=tmp_path / "caches",
        NUMBA_CACHE_DIR="",  # the usual one: compiling each loop takes longer than the rest
        KEEP_CACHES=0,
        TINY=1,
        PARTS="gine32",
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    found = json.loads((out / "results.json").read_text())
    rows = found["gine32"]["rows"]
    assert [row["mode"] for row in rows] == ["pyg", "cuda-graph+kernels"]
    assert (rows[0]["replays"], rows[1]["fallbacks"]) == (None, [])
    assert rows[1]["replays"] > rows[1]["recordings"] > 0
    assert all(row["rehearsal"] and row["loss_agrees"] for row in rows), rows
    assert all(row["step_ms"] > 0 and row["latency_ms"]["median"] > 0 for row in rows)
    look = found["gine32"]
    assert look["look"] == "cuda-graph+kernels"
    assert look["verify"]["passed"]
    assert {"x", "edge_attr"} <= set(look["verify"]["moved"])
    assert look["host"]["python_calls"] > 0
    assert look["kernels"] == {"answer": "needs a CUDA device", "seconds": 0.0}
    assert "REHEARSAL, NO FIGURES" in done.stdout
