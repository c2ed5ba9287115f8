"""The HTTP application: ``POST /predict``, ``/health``, ``/metrics``, ``/docs``, a page at ``/``.

The problem: anyone who can reach the port can send anything, in any amount. So a body is read only
up to a limit and parsed only by :mod:`staticgraph.serving.bodies`, and every error is one line with
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
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.requests import ClientDisconnect

from staticgraph.serving.bodies.checked_graphs import BadBody
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.http.replies import refusal, reply_of, status_reply
from staticgraph.text.how_many import how_many

if TYPE_CHECKING:
    from staticgraph.serving.engine.server import Server

SCRIPT = """
const form = document.querySelector("form"), out = document.querySelector("output");
let latest = 0;
const ask = async (smiles) => {
  const answer = await fetch("predict", {
    method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({smiles: [smiles]}),
  });
  const reply = await answer.json();
  if (!answer.ok) return reply.detail;
  const values = (reply.probabilities || reply.outputs)[0];
  return (reply.probabilities ? "probability " : "output ")
    + [values].flat().map((v) => v === null ? "-" : v.toPrecision(4)).join(", ");
};
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const smiles = document.querySelector("#smiles").value, number = ++latest;
  out.textContent = "...";
  const text = await ask(smiles).catch(() => "the server does not answer");
  if (number === latest) out.textContent = text;  // not the answer to an earlier one
});
"""
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }
input { font: inherit; width: 70% } button { font: inherit } output { font-size: 1.4rem }
"""


def page(title: str, smiles: bool) -> str:
    """The page as HTML, with a form if the model takes SMILES; the title must be escaped."""
    form = """<form><input id="smiles" aria-label="SMILES" value="CC(=O)Oc1ccccc1C(=O)O">
<button>Predict</button></form><output></output>"""
    about = "This model takes graphs alone: see <a href='docs'>its interface</a>."
    script = f"<script>{SCRIPT}</script>" if smiles else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>{form if smiles else about}{script}</html>"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Only the script and style above are allowed.
POLICY = (
    f"default-src 'none'; script-src {_hash(SCRIPT)}; style-src {_hash(STYLE)}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


JSON, ARRAYS = "application/json", "application/octet-stream"
# Larger bodies are read in another thread, so that they do not delay other requests.
INLINE_BYTES = 1 << 16
# Reading a SMILES takes a hundred times as long as reading as many bytes of numbers.
INLINE_SMILES = 1 << 9
# The most seconds to wait for a body.
BODY_S = 60.0
# The most seconds that a client with an unfinished request can delay the shutdown of a server.
LAST_S = 20
# How long requests are collected while others wait for their answers, in seconds: they would wait
# for the running batch in any case.
GATHER_S = 0.001


class Gathered(ABC):
    """Requests of an event loop that are submitted together: those that arrive in one turn of the
    loop, or within a moment while others wait. Waking the model's thread for each took half of the
    processor time."""

    def __init__(self) -> None:
        self._arrived: list[tuple[FlatGraphs, asyncio.Future[Response]]] = []
        self._running = 0

    async def open(self) -> None:  # noqa: B027 - there may be nothing to prepare
        """Prepares for requests, in the event loop that has them."""

    def predict(self, graphs: FlatGraphs) -> asyncio.Future[Response]:
        """A future of the reply for graphs."""
        self._loop = asyncio.get_running_loop()  # a mounted application is not told when it starts
        if not self._arrived:
            self._loop.call_later(GATHER_S if self._running else 0, self._submit_all)
        reply = self._loop.create_future()
        self._arrived.append((graphs, reply))
        return reply

    def _submit_all(self) -> None:
        arrived = [each for each in self._arrived if not each[1].done()]  # else the caller is gone
        self._arrived = []
        if not arrived:
            return
        try:
            self._submit(*map(list, zip(*arrived, strict=True)))
        except Exception as error:  # reported through the replies, since this has no caller
            for _, reply in arrived:
                reply.set_result(refusal(error))
        else:
            self._running += len(arrived)

    @abstractmethod
    def _submit(self, graphs: list[FlatGraphs], replies: list[asyncio.Future[Response]]) -> None:
        """Submits requests, whose replies :meth:`_end` gives later."""

    @abstractmethod
    async def status(self, path: str) -> Response:
        """The reply for ``health`` or ``metrics``."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the work, after the last request."""

    def _end(self, reply: asyncio.Future[Response], response: Response) -> None:
        """Ends a request, in the loop's thread."""
        self._running -= 1
        if not reply.done():
            reply.set_result(response)


class AsyncServer(Gathered):
    """Answers the requests of an event loop with a server, which is closed with the application.

    The answers of a batch come to the loop together.

    Args:
        server: the server.
        task, classes: arguments of :func:`staticgraph.serving.http.replies.reply`.
    """

    def __init__(self, server: Server, task: str | None, classes: Sequence[str]) -> None:
        super().__init__()
        self.server = server
        self._task, self._classes = task, classes
        self._ended: deque[tuple[asyncio.Future[Response], Future[Any]]] = deque()

    def _submit(self, graphs: list[FlatGraphs], replies: list[asyncio.Future[Response]]) -> None:
        for reply, future in zip(replies, self.server.submit_all(graphs), strict=True):
            future.add_done_callback(partial(self._note, reply))

    def _note(self, reply: asyncio.Future[Response], future: Future[Any]) -> None:
        """Notes that a request ended, in the server's thread or in the loop's."""
        self._ended.append((reply, future))
        if len(self._ended) == 1:  # else the loop will come to it after those before it
            self._loop.call_soon_threadsafe(self._reply)

    def _reply(self) -> None:
        while self._ended:
            reply, future = self._ended.popleft()
            self._end(reply, reply_of(future, self._task, self._classes))

    async def status(self, path: str) -> Response:
        """The reply for ``health`` or ``metrics``."""
        return status_reply(self.server, path)

    async def close(self) -> None:
        """Closes the server after it has answered the waiting requests."""
        await asyncio.to_thread(self.server.close)


def make_app(backend: Gathered, reader: Reader, title: str) -> FastAPI:
    """Makes the application; when it stops it closes the backend, which answers waiting requests.

    Args:
        backend: replies to graphs.
        reader: reads the bodies.
        title: the title of the page and of the API description.
    """

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
        text = page(escape(title), reader.smiles)
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


async def read_graphs(request: Request, reader: Reader) -> FlatGraphs:
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
    pieces, length = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                length += len(piece)
                if length > reader.most_bytes:
                    most = how_many(reader.most_bytes, "byte")
                    raise BadBody(f"the body has more than {most}", 413)
                pieces.append(piece)
    except TimeoutError:
        raise BadBody(f"the body did not come within {BODY_S:.0f} s", 408) from None
    except ClientDisconnect:
        raise BadBody("the connection ended before the body did", 400) from None
    body = b"".join(pieces)
    read = reader.json if kind == JSON else reader.arrays
    return read(body) if reads_inline(body) else await asyncio.to_thread(read, body)


def reads_inline(body: bytes) -> bool:
    """Whether a body is small enough to be read in the event loop, not in another thread."""
    return len(body) <= (INLINE_SMILES if b'"smiles"' in body[:100] else INLINE_BYTES)


def config_of(app: Any, **options: Any) -> uvicorn.Config:
    """Uvicorn's configuration: no access log, and a bounded shutdown.

    Args:
        app: the application, or what makes it.
        options: further arguments of ``uvicorn.Config``.
    """
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
