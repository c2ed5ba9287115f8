"""The servers that ``bench_serving`` compares, each in a process: this library's, and plain PyG.

The latter uses FastAPI, as a user who knows both would write it. All have the same GINE with the
same weights, one thread for torch, uvicorn with the same parser and event loop, and accept a graph
as JSON or as safetensors.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load

import staticgraph as sg

HIV = "examples/data/hiv.npz"
FIELDS = ("x", "edge_index", "edge_attr")
ARRAYS = "application/octet-stream"


def model_of(store: Any, hidden: int, layers: int) -> torch.nn.Module:
    """Returns the model, with the same weights in every process."""
    from staticgraph.models import build

    torch.manual_seed(0)
    return build("gine", store, hidden=hidden, layers=layers).eval()


def ours(args: Any) -> None:
    """Serves with this library: other processes read the bodies, this one runs the batches."""
    from staticgraph.cli.serve import listen, serve
    from staticgraph.serving import for_serving
    from staticgraph.serving.app import settle
    from staticgraph.serving.reader import Reader
    from staticgraph.serving.service import Service

    store = sg.datasets.open(HIV)
    plan = for_serving(sg.plan_buckets(store, batch_size=64))
    runner = sg.StaticGraphRunner(model_of(store, args.hidden, args.layers), plan, mode=args.mode)
    runner.warmup(phases=("eval",), progress=False)
    runner.predict([store[0]])
    categories = {field: store.cardinality(field) for field in ("x", "edge_attr")}
    reader = Reader(store.schema, categories, False, 1024, 1 << 20)
    settle()
    with sg.Server(runner, max_wait_ms=5.0) as server, listen("127.0.0.1", 0) as on:
        print(f"running on http://127.0.0.1:{on.getsockname()[1]}", file=sys.stderr, flush=True)
        serve(Service(server, reader, "ours", None), on, 1)


def tensors_of(kind: str, body: bytes) -> tuple[torch.Tensor, ...]:
    """Returns one graph's tensors."""
    if kind == ARRAYS:
        arrays = load(body)
        x, index, attr = (torch.from_numpy(arrays[name].astype(np.int64)) for name in FIELDS)
        return x.view(-1, 9), index.view(2, -1), attr.view(-1, 3)
    graph = json.loads(body)["graphs"][0]
    x, index, attr = (torch.from_numpy(np.array(graph[name], np.int64)) for name in FIELDS)
    return x, index.view(2, -1), attr.view(-1, 3)


def plain(args: Any) -> None:
    """Serves with FastAPI and PyG, one request at a time.

    With ``batched``, the requests that arrive while a batch runs form the next one, at most 64.
    """
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse
    from torch_geometric.data import Batch, Data

    model = model_of(sg.datasets.open(HIV), args.hidden, args.layers)

    def run(graphs: list[Data]) -> list[list[float]]:
        batch = Batch.from_data_list(graphs)
        with torch.inference_mode():
            out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, len(graphs))
        return out.tolist()

    waiting: asyncio.Queue[tuple[Data, asyncio.Future[list[float]]]] = asyncio.Queue()

    async def batches() -> None:
        while True:
            taken = [await waiting.get()]
            while not waiting.empty() and len(taken) < 64:
                taken.append(waiting.get_nowait())
            rows = await asyncio.to_thread(run, [data for data, _ in taken])
            for (_, future), row in zip(taken, rows, strict=True):
                future.set_result(row)

    app = FastAPI()
    tasks: list[asyncio.Task[None]] = []

    async def predict(request: Request) -> JSONResponse:
        kind = request.headers.get("content-type", "")
        x, index, attr = tensors_of(kind, await request.body())
        data = Data(x=x, edge_index=index, edge_attr=attr)
        if args.serve == "plain PyG":
            return JSONResponse({"outputs": run([data])})
        if not tasks:
            tasks.append(asyncio.create_task(batches()))
        future = asyncio.get_running_loop().create_future()
        waiting.put_nowait((data, future))
        return JSONResponse({"outputs": [await future]})

    # FastAPI cannot resolve the names in a closure's string annotations, so they are set here.
    predict.__annotations__ = {"request": Request, "return": None}
    app.add_api_route("/predict", predict, methods=["POST"], response_model=None)
    uvicorn.run(app, host="127.0.0.1", port=0, log_level="info", access_log=False)


CONTENDERS: dict[str, Callable[[Any], None]] = {
    "staticgraph": ours,
    "plain PyG": plain,
    "plain PyG, batched": plain,
}
