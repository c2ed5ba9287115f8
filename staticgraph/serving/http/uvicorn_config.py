"""How uvicorn runs an application of this library, in the model's process or in one of its own."""

from __future__ import annotations

import importlib.util
from typing import Any

import uvicorn

from staticgraph.serving.http.app import Application

# Who does not go on with what he began to send holds up a server that stops no longer than this.
LAST_S = 20


def config_of(app: Application, **options: Any) -> uvicorn.Config:
    """Without a log of requests, and with the short way of ``POST /predict`` where uvicorn's parser
    in C is installed.

    Args:
        app: the application.
        options: of ``uvicorn.Config``.
    """
    if importlib.util.find_spec("httptools") is not None:
        from staticgraph.serving.http.predict_protocol import protocol_of

        options = {"http": protocol_of(app.predict), **options}
    return uvicorn.Config(
        app, access_log=False, proxy_headers=False, timeout_graceful_shutdown=LAST_S, **options
    )
