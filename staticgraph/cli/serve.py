"""``staticgraph serve``: answers requests for a trained model over HTTP."""

from __future__ import annotations

import importlib.util
import signal
import socket
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from staticgraph.cli import FAILED
from staticgraph.cli.refusals import OPTIONS_SET, UsageError, load, require_trained
from staticgraph.errors import MissingPackage
from staticgraph.training.options import (
    BYTES,
    FOLDER,
    WHOLE,
    WORDS,
    Device,
    Mode,
    choice,
    number,
    value,
    whole,
)

if TYPE_CHECKING:
    from staticgraph.serving.service import Service

# uvicorn's status of a process whose application could not start.
STARTUP_FAILURE = 3
# How long a process that reads requests may take to start, in seconds.
START_S = 120
# Connections that wait until they are accepted.
BACKLOG = 2048
SOURCE = Parameter(group=Group.create_ordered("what is served (one of --run and --exported)"))
PLACE = Parameter(group=Group.create_ordered("where"))
LIMITS = Parameter(group=Group.create_ordered("requests"))
HOW = Parameter(group=Group.create_ordered("how"))


@Parameter(name="*")
@dataclass(frozen=True)
class ServeOptions:
    """The options of a server.

    Attributes:
        folder: folder of a run of staticgraph train.
        exported: folder that runner.export wrote; it is code: serve your own, or give --digest.
        digest: with --exported: what the export returned.
        smiles: with --exported: its graphs are molecules with this library's features.
        task: with --exported: answer probabilities with the outputs.
        host: address to listen on; the default is this machine alone.
        port: port to listen on; 0 takes a free one.
        max_wait_ms: milliseconds that a graph waits for others.
        max_queue: graphs that may wait.
        max_graphs: maximum graphs in a request.
        max_body: maximum bytes in a request, such as 8MiB.
        workers: processes that read requests, besides the model's; 0: in the same one.
        device: with --run: cpu, cuda, cuda:1, or auto.
        compile_mode: with --run: as for staticgraph train.
    """

    folder: Annotated[Path | None, FOLDER, SOURCE, Parameter(name="--run")] = None
    exported: Annotated[Path | None, FOLDER, SOURCE] = None
    digest: Annotated[str | None, WORDS, SOURCE] = None
    smiles: Annotated[bool, SOURCE] = False
    task: Annotated[str | None, choice("binary", "classes"), SOURCE] = None
    host: Annotated[str, WORDS, PLACE] = "127.0.0.1"
    port: Annotated[int, value(whole(0, 65535)), PLACE] = 8000
    max_wait_ms: Annotated[float, value(number(0, 60_000), metavar="MS"), LIMITS] = 5.0
    max_queue: Annotated[int, WHOLE, LIMITS] = 4096
    max_graphs: Annotated[int, WHOLE, LIMITS] = 1024
    max_body: Annotated[int, BYTES, LIMITS, Parameter(metavar="BYTES")] = 8 << 20
    workers: Annotated[int, value(whole(0, 64), metavar="N"), HOW] = 1
    device: Annotated[Device, HOW] = "auto"
    compile_mode: Annotated[Mode, HOW] = "auto"


def run(*, options: ServeOptions = ServeOptions()) -> int:
    """Answer requests for a trained model over HTTP.

    For example:
      staticgraph serve --run runs/hiv
      staticgraph serve --exported exported/hiv --digest 5f1e... --smiles --task binary
      curl -s localhost:8000/predict -d '{"smiles": ["CCO"]}' -H 'Content-Type: application/json'

    Requests of many callers run together, in the few shapes of the run's plan. The page at /
    predicts a molecule, where the run was trained on SMILES. Ctrl-C answers what waits, then stops.
    There are no accounts and no encryption: beyond this machine, put a proxy before it.

    Args:
        options: the options.
    """
    if (options.folder is None) == (options.exported is None):
        raise UsageError("give one of --run and --exported")
    require_extra()
    why, names = "a run says this of itself", ("digest", "smiles", "task")
    if options.exported is not None:
        why = "an export was compiled for its device already, in its own way"
        names = ("device", "compile_mode")
    if misplaced := [f"--{name.replace('_', '-')}" for name in names if name in OPTIONS_SET]:
        raise ValueError(f"leave {' and '.join(misplaced)} out: {why}")
    if options.folder is not None:
        require_trained(options.folder, options.compile_mode, options.device)
    load()
    from staticgraph.serving.app import settle
    from staticgraph.serving.service import Limits, service_of_export, service_of_run

    limits = Limits(options.max_wait_ms, options.max_queue, options.max_graphs, options.max_body)
    if options.folder is not None:
        service = service_of_run(
            options.folder, device=options.device, mode=options.compile_mode, limits=limits
        )
    else:
        assert options.exported is not None
        service = service_of_export(
            options.exported,
            digest=options.digest,
            smiles=options.smiles,
            task=options.task,
            limits=limits,
        )
        for line in unrecorded(service):
            print(line, file=sys.stderr)
    settle()
    with service.server, listen(options.host, options.port) as listening:
        port = listening.getsockname()[1]
        served = options.exported or options.folder
        print(f"serving {served} on http://{options.host}:{port}, Ctrl-C stops it", file=sys.stderr)
        if not serve(service, listening, options.workers):
            return FAILED
    print("all accepted requests are answered; stopped", file=sys.stderr)
    return 0


def unrecorded(service: Service) -> list[str]:
    """Says what an export does not record, a line each."""
    lines, known = [], service.reader.categories
    if not service.reader.smiles:
        lines.append("graphs only, no SMILES: with --smiles, where its features are this library's")
    if service.task is None:
        lines.append("outputs only, no probabilities: with --task, where they are logits")
    if unchecked := [
        item.name
        for item in service.reader.fields
        if item.dtype.startswith(("int", "uint")) and item.name not in known
    ]:
        lines.append(
            f"any whole number is let through to {', '.join(unchecked)}: this export does not say "
            "how many categories there are, and one that the model has no row for fails its "
            "request, or ends the server: refuse it before"
        )
    return lines


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens, so that who connects before a worker has started waits.

    Raises:
        ValueError: the address cannot be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"cannot listen on {host}:{port} ({error}): choose another --host or --port"
        ) from error


def serve(service: Service, listening: socket.socket, workers: int) -> bool:
    """Serves until a signal stops it.

    Args:
        service: what is served.
        listening: a socket that listens.
        workers: how many worker processes of uvicorn read the bodies; it replaces one that ends by
            itself. 0 to read them in this process.

    Returns:
        Whether it was stopped by a signal, and did not fail to start.
    """
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    from staticgraph.serving.app import config_of, make_app, reader_app
    from staticgraph.serving.backends import AsyncServer, ReaderConnections

    server, reader, title, task = service
    if not workers:
        app = make_app(AsyncServer(server, task, service.classes), reader, title)
        local = uvicorn.Server(config_of(app))
        # uvicorn shuts down gracefully, then raises the signal again for the previous handlers.
        signals = (signal.SIGINT, signal.SIGTERM)
        handlers = [signal.signal(number, lambda *_: None) for number in signals]
        local.run([listening])
        for number, handler in zip(signals, handlers, strict=True):
            signal.signal(number, handler)
        return local.started
    connections = ReaderConnections(server, task, service.classes)
    # The copy of the reader lacks what it cached, which cannot be pickled.
    factory = partial(reader_app, replace(reader), title, connections.address, connections.key)
    options: dict[str, Any] = {"workers": workers, "timeout_worker_healthcheck": START_S}
    supervisor = Multiprocess(config_of(factory, factory=True, **options), [listening])
    try:
        supervisor.run()
    finally:
        connections.close()
    return all(process.exitcode != STARTUP_FAILURE for process in supervisor.processes)


def require_extra() -> None:
    """Checks that the packages of the extra ``serve`` are installed.

    Raises:
        MissingPackage: a package is missing.
    """
    packages = ("fastapi", "uvicorn", "msgspec", "safetensors", "prometheus_client")
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(
                f"serving needs the package {package!r}, which is not installed: "
                f"pip install {' '.join(packages)}"
            )
