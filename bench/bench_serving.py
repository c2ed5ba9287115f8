"""Serving: throughput and latency over loopback, compared with one request at a time and plain PyG.

    python -m bench.bench_serving [--clients 64] [--seconds 5] [--rounds 3] [--save]

The servers are those of :mod:`bench.serving_contenders`, all with the same GINE. The clients share
one lightweight process (:mod:`bench.load`); each keeps a connection and sends one molecule of HIV
per request, as JSON or as safetensors. The servers take turns. The answers to one molecule are
compared first, and each row has the processor time per request of its server, itself and in the
processes that it started. "plain PyG" is FastAPI, ``Batch.from_data_list`` and the model; "batched"
collects requests by hand. Only the clients and one server are busy at a time; on two cores, they
share the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save as save_arrays

from bench import tables
from bench.load import requests_of, save
from bench.machine import RESULTS, machine, write
from bench.options import options_of
from bench.serving_contenders import ARRAYS, CONTENDERS, FIELDS, HIV

BODIES = 256
FORMATS = ("json", "safetensors")
Server = tuple[subprocess.Popen[str], int]


class Turn(NamedTuple):
    """The measurements of one server in one turn."""

    taken: Any
    seconds: float
    processor_s: tuple[float, float]


def requests(kind: str) -> list[bytes]:
    """Returns requests of one molecule each, ready to send."""
    import staticgraph as sg
    from staticgraph.store.columns import compact

    store = sg.datasets.open(HIV)
    ready = []
    for number in np.random.default_rng(0).permutation(len(store))[:BODIES].tolist():
        graph = {name: store[number][name].numpy() for name in FIELDS}
        if kind == "json":
            lists = {name: value.tolist() for name, value in graph.items()}
            content, body = "application/json", json.dumps({"graphs": [lists]}).encode()
        else:
            counts = {"num_nodes": [len(graph["x"])], "num_edges": [len(graph["edge_attr"])]}
            arrays = {name: compact(np.array(v)) for name, v in {**graph, **counts}.items()}
            content, body = ARRAYS, save_arrays(arrays)
        head = f"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Type: {content}\r\n"
        ready.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return ready


def answer_of(port: int, request: bytes) -> Any:
    """Returns a server's answer to one request."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(request.replace(b"Host: here", b"Host: here\r\nConnection: close", 1))
        reply = b""
        while more := line.recv(1 << 16):
            reply += more
    return json.loads(reply.partition(b"\r\n\r\n")[2])["outputs"]


def started(name: str, args: argparse.Namespace) -> Server:
    """Starts a contender; returns its process and port."""
    command = [sys.executable, "-m", "bench.bench_serving", "--serve", name]
    for option in ("hidden", "layers", "mode"):
        command += [f"--{option}", str(getattr(args, option))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    assert process.stderr is not None
    text = ""
    for line in process.stderr:
        text += line
        if port := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(port[1])
    raise RuntimeError(f"{name} did not start:\n{text[-3000:]}")


def end_with(parent: int) -> None:
    """Kills this process and its children when the parent process is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def processor_s(process: int) -> tuple[float, float]:
    """Returns the processor time of a process and of its children, in seconds."""
    ticks_here = ticks_below = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks = int(fields[11]) + int(fields[12])
        if int(stat.parent.name) == process:
            ticks_here += ticks
        elif int(fields[1]) == process:
            ticks_below += ticks
    second = os.sysconf("SC_CLK_TCK")
    return ticks_here / second, ticks_below / second


def turn(process: subprocess.Popen[str], port: int, path: Path, clients: int, s: float) -> Turn:
    """Puts one server under load for ``s`` seconds."""
    before = processor_s(process.pid)
    command = [sys.executable, "-m", "bench.load", str(port), str(clients), str(s), str(path)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    taken = np.frombuffer(out, np.float32)
    after = processor_s(process.pid)
    return Turn(taken, s, (after[0] - before[0], after[1] - before[1]))


def main() -> None:
    """Prints one row per contender and format."""
    args = options_of(
        __doc__, clients=64, seconds=5.0, rounds=3, hidden=64, layers=4, mode="auto", save=False,
        serve=str,
    )  # fmt: skip
    if args.serve:
        import torch

        torch.set_num_threads(1)
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
        CONTENDERS[args.serve](args)
        return
    with tempfile.TemporaryDirectory() as folder:
        results = {"results": compare(args, Path(folder))}
    print(f"{args.clients} clients, GINE {args.layers}x{args.hidden}, one molecule a request")
    print(tables.serving({"serving": machine() | results}))
    if args.save:
        write(RESULTS / "serving.json", results)


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures all contenders in turns."""
    files = {kind: folder / kind for kind in FORMATS}
    for kind, path in files.items():
        save(path, requests(kind))
    rows = [(name, kind) for name in CONTENDERS for kind in FORMATS]
    turns: dict[tuple[str, str], list[Turn]] = {row: [] for row in rows}
    servers: dict[str, Server] = {}
    try:
        for name in CONTENDERS:
            servers[name] = started(name, args)
        answers = [answer_of(servers[name][1], requests_of(files[kind])[0]) for name, kind in rows]
        np.testing.assert_allclose(answers, [answers[0]] * len(answers), rtol=1e-4, atol=1e-5)
        for name, kind in rows:  # warm
            turn(*servers[name], files[kind], args.clients, 1.0)
        for _ in range(args.rounds):
            for name, kind in rows:
                server, path = servers[name], files[kind]
                turns[name, kind].append(turn(*server, path, args.clients, args.seconds))
    finally:
        for process, _ in servers.values():
            process.terminate()
    return {
        f"{name}, {kind}": summary(done, turns["plain PyG", kind])
        for (name, kind), done in turns.items()
    }


def summary(turns: list[Turn], plain: list[Turn]) -> dict[str, float]:
    """Returns the figures of one server, next to plain PyG's in the same rounds."""
    p50, p99 = np.percentile(np.concatenate([each.taken for each in turns]), (50, 99)) * 1e3
    count = sum(len(each.taken) for each in turns)
    model_us, readers_us = (
        1e6 * sum(each.processor_s[k] for each in turns) / count for k in (0, 1)
    )
    ratios = [len(each.taken) / len(base.taken) for each, base in zip(turns, plain, strict=True)]
    return {
        "requests_per_s": float(np.median([len(each.taken) / each.seconds for each in turns])),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "model_us": model_us,
        "readers_us": readers_us,
        "of_plain": float(np.median(ratios)),
    }


if __name__ == "__main__":
    main()
