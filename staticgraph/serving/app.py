"""A server over HTTP: ``POST /predict``, ``/health``, ``/metrics``, OpenAPI at ``/docs``, a page.

The problem: whoever can reach the port can send anything, and as much as he likes. So a body is
read up to a limit and no further, understood by :mod:`staticgraph.serving.bodies` alone, and every
way to be wrong is one line with a status: 400 what cannot be read, 413 what is too large, 415 a
type that is not known, 422 what no model takes, 503 when to ask again. An error of the model is a
500 that says so, without the trace, which stands in the log.

There are no accounts and no encryption: beyond this machine, put a proxy that has them before it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from typing import Any

import torch
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from torch_geometric.data import Data

from staticgraph.errors import (
    BadGraph,
    BatchFailed,
    GraphTooLarge,
    MissingPackage,
    ServerBusy,
    ServerClosed,
)
from staticgraph.files.json_text import finite
from staticgraph.serving import drawing
from staticgraph.serving.bodies import BadBody, Reader
from staticgraph.serving.metrics import CONTENT_TYPE, prometheus
from staticgraph.serving.page import POLICY, page
from staticgraph.serving.server import Server

JSON, NPZ = "application/json", ("application/octet-stream", "application/x-npz")
# Bodies beyond this are read in a thread beside, so that they hold up no other request.
INLINE_BYTES = 1 << 16
# After so many batches in a row that failed the device is taken for broken.
BROKEN_AFTER = 3

log = logging.getLogger("staticgraph.serving")


def make_app(server: Server, reader: Reader, title: str, task: str | None = None) -> FastAPI:
    """The application; it closes the server, which answers what waits, when it stops.

    Args:
        server: answers.
        reader: of the bodies.
        title: of the page and of the interface.
        task: of :class:`staticgraph.training.trained.Trained`: outputs of ``binary`` and
            ``classes`` get probabilities beside them.

    Raises:
        ValueError: graphs have rows of their own or types, which a body cannot say.
    """
    if reader.schema.axes or reader.schema.two_sided:
        raise ValueError(
            "these graphs have types, or rows that belong to neither nodes, edges nor graphs, "
            "which a request cannot say: serve them from Python, with sg.Server(runner)"
        )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(server.close)

    app = FastAPI(title=title, lifespan=lifespan)

    @app.post("/predict", openapi_extra={"requestBody": _described(reader)})
    async def predict(request: Request) -> Response:
        try:
            graphs = await _graphs(request, reader)
            out = await server.ask(graphs)
        except Exception as error:
            return _refused(error)
        return JSONResponse(_answer(out, task))

    @app.get("/health")
    async def health() -> Response:
        broken = server.stats().failing >= BROKEN_AFTER
        return JSONResponse({"status": "failing" if broken else "ok"}, 503 if broken else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(prometheus(server.stats()), media_type=CONTENT_TYPE)

    @app.get("/draw")
    async def draw(smiles: str = "") -> Response:
        try:
            reader.molecule(smiles)
            svg = await asyncio.to_thread(drawing.svg, smiles)
        except Exception as error:
            return _refused(error)
        return Response(svg, media_type="image/svg+xml")

    @app.get("/", response_class=HTMLResponse)
    async def home() -> Response:
        text = page(escape(title), reader.smiles)
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    return app


async def _graphs(request: Request, reader: Reader) -> list[Data]:
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind != JSON and kind not in NPZ:
        raise BadBody(f"the body is {kind}; send {JSON} or {NPZ[0]}", 415)
    body = await _body(request, reader.most_bytes)
    read = reader.json if kind == JSON else reader.npz
    return read(body) if len(body) <= INLINE_BYTES else await asyncio.to_thread(read, body)


async def _body(request: Request, most: int) -> bytes:
    """The body, read no further than the limit, whatever its length is said to be."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise BadBody(f"the body has more than {most} bytes", 413)
    return bytes(body)


def _refused(error: Exception) -> Response:
    """One line and a status."""
    headers, text = {}, str(error).splitlines()[0] if str(error) else type(error).__name__
    match error:
        case BadBody():
            status = error.status
        case GraphTooLarge():
            status = 413
        case BadGraph():
            status = 422
        case ServerBusy():
            status, headers = 503, {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
        case ServerClosed():
            status = 503
        case MissingPackage():
            status = 501
        case ValueError():  # more graphs than the queue holds
            status = 413 if "in one request" in text else 422
        case _:
            log.error("a request failed", exc_info=error)
            status = 500
            text = "the model failed" if isinstance(error, BatchFailed) else "the server failed"
    return JSONResponse({"detail": text}, status, headers)


def _answer(out: Any, task: str | None) -> dict[str, Any]:
    """Plain values; null for what is not finite."""
    found: dict[str, Any] = {"outputs": _plain(out)}
    if isinstance(out, torch.Tensor) and task in ("binary", "classes"):
        chances = out.double().sigmoid() if task == "binary" else out.double().softmax(-1)
        found["probabilities"] = chances.tolist()
    return finite(found)


def _plain(out: Any) -> Any:
    if isinstance(out, dict):
        return {str(key): _plain(value) for key, value in out.items()}
    return [_plain(piece) for piece in out] if isinstance(out, list) else out.tolist()


def _described(reader: Reader) -> dict[str, Any]:
    """OpenAPI's description of a body."""
    rows = {item.name: {"description": item.describe(), "type": "array"} for item in reader.fields}
    graph = {
        "type": "object",
        "required": [item.name for item in reader.fields],
        "properties": {
            "edge_index": {"type": "array", "description": "[2, edges], nodes from 0"},
            **rows,
        },
    }
    lists = {"graphs": {"type": "array", "items": graph, "maxItems": reader.most_graphs}}
    if reader.smiles:
        lists["smiles"] = {"type": "array", "items": {"type": "string"}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {
        "required": True,
        "content": {
            JSON: {"schema": {"type": "object", "properties": lists}},
            NPZ[0]: binary,
        },
    }
