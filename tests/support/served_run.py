"""The application of a run in this process alone, without workers and without a port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from staticgraph.serving.app import make_app
from staticgraph.serving.asker import Here
from staticgraph.serving.from_run import service_of_run


def app_of_run(folder: Path, **options: Any) -> FastAPI:
    """Takes what :func:`staticgraph.serving.from_run.service_of_run` takes."""
    service = service_of_run(folder, **options)
    try:
        return make_app(Here(service.server), *service[1:])
    except BaseException:
        service.server.close()
        raise
