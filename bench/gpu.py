"""Everything that needs a GPU, in calls of a few minutes.

    python3 -m bench.gpu first --out DIR       is it right, and how fast is it?
    python3 -m bench.gpu second --out DIR      against whom, in how much memory, does it learn?

Most of the time goes into compiling. So all parts of a call start at once and share their caches;
those that time steps wait when they are prepared, and then measure one after another, alone. Then
come the parts that run alone. After ``--seconds`` nothing begins, and whatever still runs is ended.
``DIR`` receives ``results.json``, to which a call adds, ``tables.txt``, and a log of each part.
Results of an earlier call in the same folder are kept unless this call has the same part, so parts
may run one after another. It runs from the source tree and installs nothing. ``--tiny`` rehearses a
call on a CPU; its figures mean nothing, and are never mixed with those of a device.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import RENDERED

# How a part runs: timed when all are prepared, beside the preparation, or alone after the timing.
TIMED, BESIDE, ALONE = "timed", "beside", "alone"
OURS = "cuda-graph+kernels"
LOOK = f"--look {OURS}"
GINE, GPS, WIDE = "gine:5x300", "gps:10x64", "gps:10x384"
TRAINING = (
    "--data examples/data/hiv.npz --model gine --hidden 300 --layers 5 --device cuda --seconds 20 "
    f"--modes {OURS} pyg-compiled"
)
# The share of a call after which no part is waited for until it is prepared.
PREPARED = 0.5
GRACE_S = 15


class Part(NamedTuple):
    """A part of a call; in its command, words in braces are filled in.

    Attributes:
        name: of its results and its log.
        how: ``TIMED``, ``BESIDE`` or ``ALONE``.
        command: of Python, after ``-m``.
        seconds: for a part that is timed or alone, how long it may take.
    """

    name: str
    how: str
    command: list[str]
    seconds: int = 40


def steps(name: str, model: str, batch: int, precision: str, modes: str, look: str = "") -> Part:
    """Returns the part that times one model at one batch size."""
    words = f"bench_runner --model {model} --batch-size {batch} --precision {precision} --modes "
    return script(name, TIMED, f"{words}{modes} --gate {{gate}} --deadline {{deadline}} {look}")


def script(name: str, how: str, words: str, seconds: int = 40) -> Part:
    """Returns a part that runs a script of this folder."""
    return Part(name, how, f"bench.{words} --json {{json}}".split(), seconds)


def tests(*files: str) -> Part:
    """Returns the part that runs the tests marked ``gpu``, all cases of them."""
    words = "pytest -m gpu -n 6 -o addopts= -q -rf --tb=short -p no:cacheprovider --timeout 90"
    return Part("tests", BESIDE, [*words.split(), *(f"tests/{file}.py" for file in files)])


CALLS: dict[str, list[Part]] = {
    "first": [
        steps("gine32", GINE, 32, "fp32", f"pyg {OURS} cuda-graph", LOOK),
        steps("gps32", GPS, 32, "fp32", f"pyg {OURS}", LOOK),
        steps("gine256", GINE, 256, "fp32", f"pyg {OURS} cuda-graph"),
        steps("gps256", GPS, 256, "fp32", f"pyg {OURS}"),
        steps("gine32-half", GINE, 32, "bf16", f"pyg {OURS}"),
        steps("gps32-half", GPS, 32, "bf16", f"pyg {OURS}"),
        tests("test_gpu", "test_gpu_recording", "test_gpu_trajectory", "test_gpu_kernels"),
        script("micro", ALONE, "micro"),
    ],
    "second": [
        steps("peers-gine", GINE, 32, "bf16", f"pyg {OURS} pyg-dynamic pad-to-powers"),
        steps("gine8-half", GINE, 8, "bf16", f"pyg {OURS} pad-to-powers"),
        steps("gine1024", GINE, 1024, "fp32", f"pyg {OURS} cuda-graph"),
        steps("gps8-half", GPS, 8, "bf16", f"pyg {OURS}"),
        steps("wide32", WIDE, 32, "fp32", f"pyg {OURS}"),
        steps("auto", GINE, 32, "fp32", "pyg auto"),
        script("pool", BESIDE, "bench_pool"),
        script("memory-gine", BESIDE, "bench_memory --device cuda --model gine"),
        script("memory-gps", BESIDE, "bench_memory --device cuda --model gps"),
        script("curves", BESIDE, f"bench_curves --modes eager {OURS} --epochs 3"),
        script("settle", BESIDE, "settle"),
        script("layers", BESIDE, "bench_layers"),
        tests(
            "test_gpu_attention",
            "test_gpu_collation",
            "test_outofcore_encoder",
            "test_outofcore_loader",
            "test_out_of_memory",
        ),
        Part("training", ALONE, f"staticgraph try {TRAINING} --out {{out}}".split(), 60),
        script("loading", ALONE, "bench_loader --rounds 3", 20),
    ],
}
# What a call is rehearsed in: other models and batches, and more options by script.
SMALL = {GINE: "gine:1x8", GPS: "gps:1x8", WIDE: "gps:1x8", "cuda": "cpu"}
SMALL_OPTIONS = {
    "bench.bench_runner": (
        "--batch-size 8 --rounds 3 --rows-of-steps 2 --in-a-row 2 --loss-steps 24"
    ),
    "bench.bench_pool": "--model gine:1x8 --graphs 8 16",
    "bench.bench_layers": "--count 6",
    "bench.bench_curves": "--model gine:1x8 --epochs 1 --batch-size 32 --graphs 160",
    "pytest": "-m 'not slow' -n 0 -k cpu",
    "staticgraph": "--modes eager --seconds 5 --hidden 8 --layers 1",
}


class Running:
    """A part that runs, in a process group of its own, with its log."""

    def __init__(self, part: Part, out: Path, scratch: Path, prepare_s: float) -> None:
        self.part = part
        self.gate = scratch / f"{part.name}.gate"
        self.started = time.monotonic()
        places = {
            "{out}": str(out / part.name),
            "{json}": str(scratch / f"{part.name}.json"),
            "{gate}": str(self.gate),
            "{deadline}": str(round(prepare_s / 2)),
        }
        command = [sys.executable, "-m", *(places.get(word, word) for word in part.command)]
        with (out / f"{part.name}.log").open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell's background jobs, this one perhaps, have it ignored, and hand that on.
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def waits(self) -> bool:
        """Whether it is prepared, and not yet told to measure."""
        return self.gate.with_suffix(".ready").exists() and self.process.poll() is None

    def end(self, seconds: float) -> str:
        """Waits so long, interrupts it if need be, and says how it ended."""
        for after, sent in ((seconds, signal.SIGINT), (GRACE_S, signal.SIGKILL)):
            try:
                self.process.wait(max(0.0, after))
                break
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, sent)
        code = self.process.wait()
        return f"{self.part.name}: {code} after {time.monotonic() - self.started:.0f} s"


def run(parts: list[Part], out: Path, scratch: Path, seconds: float) -> Iterator[str]:
    """Runs the parts of a call; yields how each ended."""
    until = time.monotonic() + seconds
    prepared = time.monotonic() + PREPARED * seconds
    begun = [Running(p, out, scratch, PREPARED * seconds) for p in parts if p.how != ALONE]
    timed = [each for each in begun if each.part.how == TIMED]
    beside = [each for each in begun if each.part.how == BESIDE]
    try:
        for each in beside:
            yield each.end(prepared - time.monotonic())
        while time.monotonic() < prepared:
            if all(each.waits or each.process.poll() is not None for each in timed):
                break
            time.sleep(0.2)
        for each in sorted(timed, key=lambda each: not each.waits):
            each.gate.touch()
            yield each.end(min(each.part.seconds, until - time.monotonic()))
        for part in parts:
            left = until - time.monotonic()
            if part.how == ALONE and left > GRACE_S:
                begun.append(Running(part, out, scratch, part.seconds))
                yield begun[-1].end(min(part.seconds, left))
    finally:
        for each in begun:
            if each.process.poll() is None:
                os.killpg(each.process.pid, signal.SIGKILL)


def tiny(part: Part) -> Part:
    """Returns the part in a size for a CPU, where its body is rehearsed."""
    words = [SMALL.get(word, word) for word in part.command]
    return part._replace(command=words + shlex.split(SMALL_OPTIONS.get(words[0], "")))


def join(scratch: Path, out: Path) -> dict[str, Any]:
    """Adds the results of a call to those of the folder, and returns all.

    A truncated file is replaced by an error that says so.
    """
    target = out / "results.json"
    results: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    lines = (scratch / "machine.txt").read_text().splitlines()
    machine = dict(line.split(": ", 1) for line in lines if ": " in line)
    if ("rehearsal" in machine) != ("rehearsal" in results.get("machine", {})):
        results = {}
    results["machine"] = machine
    for file in sorted(scratch.glob("*.json")):
        try:
            results[file.stem] = json.loads(file.read_text())
        except ValueError as error:
            results[file.stem] = {"error": f"cut off: {error}"}
    target.write_text(json.dumps(results, indent=1) + "\n")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("call", choices=list(CALLS))
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--seconds", type=float, default=230.0, help="of the whole call")
    parser.add_argument("--parts", nargs="+", help="only these")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, in small sizes")
    options = parser.parse_args()
    parts = [p for p in CALLS[options.call] if not options.parts or p.name in options.parts]
    caches = Path(tempfile.gettempdir()) / "staticgraph-gpu"
    os.environ.update(
        PYTHONPATH=os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH")])),
        PYTHONUNBUFFERED="1",
        OMP_NUM_THREADS="1",
        TORCHINDUCTOR_COMPILE_THREADS="1",  # as many processes as there are parts
        EVERY_CASE="1",
        TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
        TRITON_CACHE_DIR=str(caches / "triton"),
        NUMBA_CACHE_DIR=str(caches / "numba"),
    )
    if options.tiny:
        os.environ["STATICGRAPH_REHEARSAL"] = "1"
        parts = list(map(tiny, parts))
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        machine = [sys.executable, "-m", "bench.machine", *([] if options.tiny else ["--gpu"])]
        checked = subprocess.run(machine, capture_output=True, text=True)
        print(checked.stdout + checked.stderr, flush=True)
        if checked.returncode:
            sys.exit("this machine cannot run the suite")
        (scratch / "machine.txt").write_text(checked.stdout)
        ended = []
        for line in run(parts, options.out, scratch, options.seconds):
            ended.append(line.partition(":")[0])
            print(line, flush=True)
        results = join(scratch, options.out)
    label = ["REHEARSAL, NO FIGURES\n"] if options.tiny else []
    tables = [f"## {name}\n\n{render(results)}\n" for name, render in RENDERED.items()]
    (options.out / "tables.txt").write_text(text := "\n".join([*label, *tables]))
    missing = [part.name for part in parts if part.name not in ended]
    print(f"{text}\nnot run: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
