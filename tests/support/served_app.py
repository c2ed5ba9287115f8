"""The application of a service in a single process, without workers and without a port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from staticgraph.serving.from_run import service_of_run
from staticgraph.serving.http.app import make_app
from staticgraph.serving.http.backend import LocalBackend
from staticgraph.serving.service import Service


def app_of(service: Service) -> FastAPI:
    """Returns the application; closes the service's server if it cannot be made."""
    try:
        return make_app(LocalBackend(service.server), *service[1:])
    except BaseException:
        service.server.close()
        raise


def app_of_run(folder: Path, **options: Any) -> FastAPI:
    """Takes the arguments of :func:`staticgraph.serving.from_run.service_of_run`."""
    return app_of(service_of_run(folder, **options))
