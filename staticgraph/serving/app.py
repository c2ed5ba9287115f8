"""The HTTP application: ``POST /predict``, ``/health``, ``/metrics``, ``/docs``, a page at ``/``.

The problem: anyone who can reach the port can send anything, in any amount. So a body is read only
up to a limit and parsed only by :mod:`.reader`, and every error is one line with
a status (:mod:`.replies`). The heads of requests are uvicorn's business: with ``httptools`` it
bounds neither their length nor their time.

There is no authentication and no encryption: to serve other machines, put a proxy in front of it
that provides them, and limits on heads.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import hashlib
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.requests import ClientDisconnect

from staticgraph.serving.backends import Backend, RemoteServer
from staticgraph.serving.checked_graphs import Arrays, BadBody
from staticgraph.serving.reader import Reader
from staticgraph.serving.replies import JSON, refusal
from staticgraph.text.how_many import how_many

ARRAYS = "application/octet-stream"
# Larger bodies are read in another thread, so that they do not delay other requests.
INLINE_BYTES = 1 << 16
# Reading a SMILES takes a hundred times as long as reading as many bytes of numbers.
INLINE_SMILES = 1 << 9
# The most seconds to wait for a body.
BODY_S = 60.0
# The most seconds that a client with an unfinished request can delay the shutdown of a server.
LAST_S = 20

PAGE = Path(__file__).with_name("page.html").read_text()
# What the page has for a model that does not take SMILES, from its form to its script.
ABOUT = "This model takes graphs alone: see <a href='docs'>its interface</a>."


def _hash(tag: str) -> str:
    text = re.findall(f"<{tag}>(.*)</{tag}>", PAGE, re.DOTALL)[0]
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Only the script and style of the page are allowed.
POLICY = (
    f"default-src 'none'; script-src {_hash('script')}; style-src {_hash('style')}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def make_app(backend: Backend, reader: Reader, title: str) -> FastAPI:
    """Makes the application; when it stops it closes the backend, which answers waiting requests.
    Bodies are read by the reader, and the backend replies to their graphs."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Opens the backend before the first request and closes it after the last."""
        await backend.open()
        yield
        await backend.close()

    async def predict(request: Request) -> Response:
        """The outputs of the graphs in the body."""
        try:
            return await backend.predict(await read_graphs(request, reader))
        except Exception as error:
            return refusal(error)

    async def status(request: Request) -> Response:
        """The health of the server, or its metrics for Prometheus."""
        try:
            return await backend.status(request.url.path.rpartition("/")[2])
        except Exception as error:
            return refusal(error)

    async def home() -> Response:
        """The page that predicts a molecule."""
        page = PAGE if reader.smiles else re.sub("<form.*</script>", ABOUT, PAGE, flags=re.DOTALL)
        text = page.replace("$title", escape(title))
        return HTMLResponse(text, headers={"Content-Security-Policy": POLICY})

    app = FastAPI(title=title, lifespan=lifespan)
    extra = {"requestBody": _described(reader)}
    # FastAPI's own routes cost a quarter of a request; this one is only described by one.
    app.add_route("/predict", predict, methods=["POST"])
    app.post("/predict", response_model=None, openapi_extra=extra)(predict)
    app.get("/health", response_model=None)(status)
    app.get("/metrics", response_model=None)(status)
    app.get("/", response_class=HTMLResponse)(home)
    return app


def _described(reader: Reader) -> dict[str, Any]:
    """The OpenAPI description of a body."""
    schema = msgspec.json.schema(reader.body)
    graph, body = (schema["$defs"][name] for name in ("Graph", "Body"))
    for item in reader.fields:
        graph["properties"][item.name]["description"] = item.describe()
    lists = {**body["properties"], "graphs": {"type": "array", "items": graph}}
    if not reader.smiles:
        del lists["smiles"]
    return {
        "required": True,
        "content": {
            JSON: {"schema": {"type": "object", "properties": lists}},
            ARRAYS: {"schema": {"type": "string", "format": "binary"}},
        },
    }


async def read_graphs(request: Request, reader: Reader) -> Arrays:
    """The graphs of a request; a body is read only up to the limit, and a large one in a thread.

    Raises:
        BadBody: the body is too large, too slow, or not of a form that the reader reads.
    """
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise BadBody(
            f"the body is compressed (Content-Encoding: {coding[:100]}): send it as it is", 415
        )
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    if kind not in (JSON, ARRAYS):
        raise BadBody(f"the body is {kind}; send {JSON} or {ARRAYS}", 415)
    body = bytearray()  # quick to extend, however small the pieces are
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > reader.most_bytes:
                    most = how_many(reader.most_bytes, "byte")
                    raise BadBody(f"the body has more than {most}", 413)
    except TimeoutError:
        raise BadBody(f"the body did not come within {BODY_S:.0f} s", 408) from None
    except ClientDisconnect:
        raise BadBody("the connection ended before the body did", 400) from None
    read = reader.json if kind == JSON else reader.arrays
    whole = bytes(body)
    return read(whole) if reads_inline(whole) else await asyncio.to_thread(read, whole)


def reads_inline(body: bytes) -> bool:
    """Whether a body is small enough to be read in the event loop, not in another thread."""
    return len(body) <= (INLINE_SMILES if b'"smiles"' in body[:100] else INLINE_BYTES)


def reader_app(reader: Reader, title: str, address: str, key: bytes) -> FastAPI:
    """The application of a process that reads bodies for the process with the model."""
    settle()
    return make_app(RemoteServer(address, key), reader, title)


def config_of(app: Any, **options: Any) -> uvicorn.Config:
    """Uvicorn's configuration for an application, or what makes one: no access log, and a bounded
    shutdown."""
    return uvicorn.Config(
        app, access_log=False, proxy_headers=False, timeout_graceful_shutdown=LAST_S, **options
    )


def settle() -> None:
    """Tunes the interpreter for serving, after everything is loaded.

    Existing objects are frozen, so that the garbage collector does not traverse them again after
    every hundred thousand new ones, which takes a third of a second with torch and PyG. They are
    unfrozen at exit, or Triton 3.9 would report all its types as leaks."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)
