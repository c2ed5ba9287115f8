"""How uvicorn runs an application of this library, in the model's process or in a worker's."""

from __future__ import annotations

import importlib.util
from typing import Any

import uvicorn

from staticgraph.serving.http.app import Application

# The most seconds that a client with an unfinished request can delay the shutdown of a server.
LAST_S = 20


def config_of(app: Application, **options: Any) -> uvicorn.Config:
    """The configuration of uvicorn: no access log, and bounded requests if uvicorn's C parser
    (``httptools``) is installed.

    Args:
        app: the application.
        options: further arguments of ``uvicorn.Config``.
    """
    if importlib.util.find_spec("httptools") is not None:
        from staticgraph.serving.http.bounded_protocol import protocol_of

        options = {"http": protocol_of(app.predict.most_bytes), **options}
    return uvicorn.Config(
        app, access_log=False, proxy_headers=False, timeout_graceful_shutdown=LAST_S, **options
    )
