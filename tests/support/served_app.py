"""The application of a service in a single process, without workers and without a port."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI

from staticgraph.serving.app import make_app
from staticgraph.serving.backends import AsyncServer
from staticgraph.serving.service import Limits, Service, service_of_run


def app_of(service: Service) -> FastAPI:
    """Returns the application of a service."""
    server, reader, title, task = service
    return make_app(AsyncServer(server, task, service.classes), reader, title)


def app_of_run(folder: Path, mode: str = "eager", **limits: Any) -> FastAPI:
    """Takes the limits of :class:`staticgraph.serving.service.Limits`."""
    return app_of(service_of_run(folder, mode=mode, limits=Limits(**limits)))
