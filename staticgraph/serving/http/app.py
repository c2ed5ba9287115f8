"""A server over HTTP: ``POST /predict``, ``/health``, ``/metrics``, OpenAPI at ``/docs``, a page.

The problem: whoever can reach the port can send anything, and as much as he likes. So a body is
read up to a limit and no further, understood by :mod:`staticgraph.serving.bodies` alone, and every
way to be wrong is one line with a status (:mod:`.refusal`).

There are no accounts and no encryption: beyond this machine, put a proxy that has them before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import escape
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from staticgraph.schema import EDGE_INDEX
from staticgraph.serving.bodies import compact_format
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.http import molecule_drawing
from staticgraph.serving.http.backend import Backend
from staticgraph.serving.http.home_page import POLICY, page
from staticgraph.serving.http.metrics import CONTENT_TYPE
from staticgraph.serving.http.predict_route import JSON, NPZ, PATH, PredictRoute
from staticgraph.serving.http.refusal import refused

# After so many batches in a row that failed the device is taken for broken.
BROKEN_AFTER = 3


class Application(FastAPI):
    """FastAPI with one route before it."""

    predict: PredictRoute

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Any request, and the beginning and the end."""
        if PredictRoute.takes(scope):
            await self.predict(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def make_app(backend: Backend, reader: Reader, title: str, task: str | None = None) -> Application:
    """The application; when it stops it closes the backend, which answers what still waits.

    Args:
        backend: answers.
        reader: of the bodies.
        title: of the page and of the interface.
        task: of :class:`staticgraph.training.trained.Trained`: outputs of ``binary`` and
            ``classes`` get probabilities next to them.

    Raises:
        ValueError: graphs have rows of their own or types, which a body cannot say.
    """
    if reader.schema.axes or reader.schema.two_sided:
        raise ValueError(
            "these graphs have types, or rows that belong to neither nodes, edges nor graphs, "
            "which a request cannot say: serve them from Python, with sg.Server(runner)"
        )

    app = Application(title=title, lifespan=_lifespan_of(backend))
    app.predict = PredictRoute(backend, reader, task)

    # For the description, and for an application that has this one under a path of its own.
    @app.post(PATH, openapi_extra={"requestBody": _described(reader)})
    async def predict() -> Response:
        """The outputs of the graphs in the body."""
        return _Handed(app.predict)

    @app.get("/health")
    async def health() -> Response:
        """503 after some batches in a row that failed."""
        failing, _ = await backend.health()
        broken = failing >= BROKEN_AFTER
        return JSONResponse({"status": "failing" if broken else "ok"}, 503 if broken else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and times, for Prometheus."""
        _, text = await backend.health()
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    _add_page(app, reader)
    return app


def _lifespan_of(backend: Backend) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """What an application begins and ends with."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Opens the backend before the first request and closes it after the last."""
        await backend.open()
        yield
        await backend.close()

    return lifespan


def _add_page(app: FastAPI, reader: Reader) -> None:
    """The page at ``/`` and its drawings."""

    @app.get("/draw")
    async def draw(smiles: str = "") -> Response:
        """A molecule as SVG."""
        try:
            await asyncio.to_thread(reader.molecule, smiles)
            svg = await asyncio.to_thread(molecule_drawing.svg, smiles)
        except Exception as error:
            status, body, _ = refused(error)
            return Response(body, status, media_type=JSON)
        return Response(svg, media_type="image/svg+xml")

    @app.get("/", response_class=HTMLResponse)
    async def home() -> Response:
        """The page that draws and predicts a molecule."""
        text = page(escape(app.title), reader.smiles)
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})


class _Handed(Response):
    """A response that another application gives."""

    def __init__(self, route: PredictRoute) -> None:
        super().__init__()
        self._route = route

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._route(scope, receive, send)


def _described(reader: Reader) -> dict[str, Any]:
    """OpenAPI's description of a body."""
    rows = {item.name: {"description": item.describe(), "type": "array"} for item in reader.fields}
    graph = {
        "type": "object",
        "required": [
            *([EDGE_INDEX] if reader.edges else []),
            *([] if reader.counts_nodes else ["num_nodes"]),
            *rows,
        ],
        "properties": {
            EDGE_INDEX: {"type": "array", "description": "[2, edges], nodes from 0"},
            "num_nodes": {"type": "integer", "description": "where no field has a row per node"},
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
            compact_format.CONTENT_TYPE: binary,
        },
    }
