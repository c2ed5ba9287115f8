"""Serving: throughput and latency over loopback, beside one request at a time and beside plain PyG.

    python -m bench.bench_serving [--clients 64] [--seconds 5] [--rounds 3] [--json FILE]

Three servers, each a process of its own with the same GINE, the same reading of bodies and one
thread for torch; the clients are one process beside them, each with a connection that it keeps and
one molecule of HIV a request, as JSON. The servers take turns. "One at a time" is the same runner
asked request by request; "plain PyG" is FastAPI, ``Batch.from_data_list`` and the model. The
answers to one molecule are compared first. Two shared cores carry both ends, so HTTP's own cost,
the same for all three, bounds the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

import numpy as np

HIV = "examples/data/hiv.npz"
NAMES = ("staticgraph", "one at a time", "plain PyG")
BODIES = 256


def serve(name: str, hidden: int, layers: int, max_wait_ms: float) -> None:
    """One contender, until it is killed."""
    import torch
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from torch_geometric.data import Batch

    import staticgraph as sg
    from staticgraph.cli.serve import SWITCH_S
    from staticgraph.models import build
    from staticgraph.serving.app import make_app
    from staticgraph.serving.bodies import Reader
    from staticgraph.serving.ladder import for_serving

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.setswitchinterval(SWITCH_S)
    store = sg.datasets.open(HIV)
    model = build("gine", store, hidden=hidden, layers=layers).eval()
    categories = {field: store.cardinality(field) for field in ("x", "edge_attr")}
    reader = Reader(store.schema, categories, False, 1024, 1 << 20)
    if name != "plain PyG":
        sg.convert(model, kernels=True)
        plan = for_serving(sg.plan_buckets(store, batch_size=64))
        runner = sg.StaticGraphRunner(model, plan, mode="eager")
        runner.warmup(phases=("eval",))
        runner.predict([store[0]])
    if name == "staticgraph":
        app = make_app(sg.Server(runner, max_wait_ms=max_wait_ms), reader, name)
    else:
        app, lock = FastAPI(), threading.Lock()

        def answer(body: bytes) -> list[Any]:
            graphs = reader.json(body)
            if name == "one at a time":
                with lock:
                    return runner.predict(graphs).tolist()
            batch = Batch.from_data_list(graphs)
            with torch.inference_mode():
                out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, len(graphs))
            return out.tolist()

        @app.post("/predict")
        async def predict(request: Request) -> JSONResponse:
            body = await request.body()
            return JSONResponse({"outputs": await asyncio.to_thread(answer, body)})

        # What a closure's annotations name must be known to FastAPI.
        predict.__annotations__ = {"request": Request, "return": None}
        app = FastAPI()
        app.add_api_route("/predict", predict, methods=["POST"], response_model=None)
    uvicorn.run(app, host="127.0.0.1", port=0, log_level="info", access_log=False)


def bodies() -> list[bytes]:
    """Requests of one molecule each, ready to be sent."""
    import staticgraph as sg

    store = sg.datasets.open(HIV)
    made = []
    for number in np.random.default_rng(0).permutation(len(store))[:BODIES].tolist():
        data = store[number]
        graph = {name: data[name].tolist() for name in ("x", "edge_index", "edge_attr")}
        body = json.dumps({"graphs": [graph]}).encode()
        head = "POST /predict HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        made.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bytes:
    """One request over a connection that is kept."""
    writer.write(body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert head.startswith(b"HTTP/1.1 200"), head
    assert length is not None
    return await reader.readexactly(int(length[1]))


async def load(port: int, given: list[bytes], clients: int, seconds: float) -> list[float]:
    """The latencies of all requests that so many clients made, each waiting for its answer."""
    taken: list[float] = []
    stop = time.perf_counter() + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        k = number
        while (began := time.perf_counter()) < stop:
            await ask(reader, writer, given[k % len(given)])
            taken.append(time.perf_counter() - began)
            k += clients
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return taken


async def answer_of(port: int, body: bytes) -> Any:
    """What a server says of one molecule."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = json.loads(await ask(reader, writer, body))["outputs"]
    writer.close()
    return found


def started(name: str, args: argparse.Namespace) -> tuple[subprocess.Popen[str], int]:
    """A contender's process and its port."""
    command = [sys.executable, "-m", "bench.bench_serving", "--serve", name]
    process = subprocess.Popen(
        [
            *command,
            *("--hidden", str(args.hidden), "--layers", str(args.layers)),
            *("--max-wait-ms", str(args.max_wait_ms)),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"running on http://127\.0\.0\.1:(\d+)", line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, int(found[1])
    raise RuntimeError(f"{name} did not start")


def main() -> None:
    """Prints a row a contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--max-wait-ms", type=float, default=5.0)
    parser.add_argument("--json")
    parser.add_argument("--serve", choices=NAMES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.hidden, args.layers, args.max_wait_ms)
        return
    from staticgraph.text.table import table

    given = bodies()
    servers: dict[str, tuple[subprocess.Popen[str], int]] = {}
    taken: dict[str, list[list[float]]] = {name: [] for name in NAMES}
    try:
        for name in NAMES:
            servers[name] = started(name, args)
        answers = [asyncio.run(answer_of(servers[name][1], given[0])) for name in NAMES]
        np.testing.assert_allclose(answers[1:], answers[:1] * 2, rtol=1e-4, atol=1e-5)
        for name in NAMES:  # warm
            asyncio.run(load(servers[name][1], given, args.clients, 1.0))
        for _ in range(args.rounds):
            for name in NAMES:
                port = servers[name][1]
                taken[name].append(asyncio.run(load(port, given, args.clients, args.seconds)))
        said = urllib.request.urlopen(f"http://127.0.0.1:{servers['staticgraph'][1]}/metrics")
        print("\n".join(line for line in said.read().decode().splitlines() if line[0] != "#"))
    finally:
        for process, _ in servers.values():
            process.kill()
    rows, results = [], {}
    for name in NAMES:
        pace = float(np.median([len(each) / args.seconds for each in taken[name]]))
        p50, p99 = np.percentile(np.concatenate(taken[name]), (50, 99)) * 1e3
        results[name] = {"requests_per_s": pace, "p50_ms": float(p50), "p99_ms": float(p99)}
        rows.append((name, f"{pace:,.0f}", f"{p50:.1f}", f"{p99:.1f}"))
    print(f"{args.clients} clients, GINE {args.layers}x{args.hidden}, one molecule a request")
    print(table(("server", "requests/s", "p50 ms", "p99 ms"), rows))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"settings": vars(args), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
