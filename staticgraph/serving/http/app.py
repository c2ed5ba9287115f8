"""The HTTP application: ``POST /predict``, ``/health``, ``/metrics``, ``/docs``, a page at ``/``.

The problem: anyone who can reach the port can send anything, in any amount. So a body is read only
up to a limit and parsed only by :mod:`staticgraph.serving.bodies`, and every error is one line with
a status (:mod:`.refusal`).

There is no authentication and no encryption: to serve other machines, put a proxy in front of it
that provides them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import escape
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from staticgraph.schema import EDGE_INDEX
from staticgraph.serving.bodies import compact_format
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.http.backend import Backend
from staticgraph.serving.http.home_page import POLICY, page
from staticgraph.serving.http.metrics import CONTENT_TYPE
from staticgraph.serving.http.predict_route import JSON, NPZ, PATH, PredictRoute

# The number of consecutive failed batches after which the device is considered broken.
BROKEN_AFTER = 3


class Application(FastAPI):
    """A FastAPI application with one route that bypasses the framework."""

    predict: PredictRoute

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles a request or a lifespan event."""
        if PredictRoute.takes(scope):
            await self.predict(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def make_app(backend: Backend, reader: Reader, title: str, task: str | None = None) -> Application:
    """Makes the application; when it stops it closes the backend, which answers waiting requests.

    Args:
        backend: answers the requests.
        reader: reads the bodies.
        title: the title of the page and of the API description.
        task: the task of :class:`staticgraph.training.trained.Trained`: for ``binary`` and
            ``classes``, probabilities are added to the outputs.

    Raises:
        ValueError: the graphs have types or axes, which a body cannot express.
    """
    if reader.schema.axes or reader.schema.two_sided:
        raise ValueError(
            "these graphs have types, or rows that belong to neither nodes, edges nor graphs, "
            "which a request cannot say: serve them from Python, with sg.Server(runner)"
        )

    app = Application(title=title, lifespan=_lifespan_of(backend))
    app.predict = PredictRoute(backend, reader, task)

    # For the API description, and for an application that mounts this one under another path.
    @app.post(PATH, openapi_extra={"requestBody": _described(reader)})
    async def predict() -> Response:
        """The outputs of the graphs in the body."""
        return _Handed(app.predict)

    @app.get("/health")
    async def health() -> Response:
        """The health of the server: 503 after several consecutive failed batches."""
        failing, _ = await backend.health()
        broken = failing >= BROKEN_AFTER
        return JSONResponse({"status": "failing" if broken else "ok"}, 503 if broken else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters and latencies, for Prometheus."""
        _, text = await backend.health()
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

    _add_page(app, reader)
    return app


def _lifespan_of(backend: Backend) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan of an application, which opens and closes the backend."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Opens the backend before the first request and closes it after the last."""
        await backend.open()
        yield
        await backend.close()

    return lifespan


def _add_page(app: FastAPI, reader: Reader) -> None:
    """Adds the page at ``/``."""

    @app.get("/", response_class=HTMLResponse)
    async def home() -> Response:
        """The page that predicts a molecule."""
        text = page(escape(app.title), reader.smiles)
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})


class _Handed(Response):
    """A response that is sent by another ASGI application."""

    def __init__(self, route: PredictRoute) -> None:
        super().__init__()
        self._route = route

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._route(scope, receive, send)


def _described(reader: Reader) -> dict[str, Any]:
    """The OpenAPI description of a body."""
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
