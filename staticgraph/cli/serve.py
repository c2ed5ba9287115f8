"""``staticgraph serve``: answers requests for a trained model over HTTP."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import socket
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from staticgraph.cli import FAILED, values
from staticgraph.cli.device_check import check_mode
from staticgraph.cli.loading import load
from staticgraph.errors import MissingPackage
from staticgraph.steps.compilation.modes import MODES
from staticgraph.training.run_folder import named_in, require_trained

if TYPE_CHECKING:
    from staticgraph.serving.service import Service

# uvicorn's status of a process whose application could not start.
STARTUP_FAILURE = 3
# How long a process that reads requests may take to start, in seconds.
START_S = 120
# Connections that wait until they are accepted.
BACKLOG = 2048
STOPPED = "what was asked is answered; stopped"
EXAMPLE = """\
examples:
  staticgraph serve --run runs/hiv
  staticgraph serve --exported exported/hiv --digest 5f1e... --smiles --task binary
  curl -s localhost:8000/predict -d '{"smiles": ["CCO"]}' -H 'Content-Type: application/json'

Requests of many callers run together, in the few shapes of the run's plan. The page at / predicts a
molecule, where the run was trained on SMILES. Ctrl-C answers what waits, then stops.
There are no accounts and no encryption: beyond this machine, put a proxy before it.
"""


def register(commands: Any) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "serve",
        help="answer requests for a trained model over HTTP",
        description="Answer requests for a trained model over HTTP.",
        epilog=EXAMPLE,
    )
    _add_source(parser.add_argument_group("what is served (one of --run and --exported)"))
    _add_address(parser.add_argument_group("where"))
    _add_limits(parser.add_argument_group("requests"))
    _add_how(parser.add_argument_group("how"))
    parser.set_defaults(run=run, parser=parser)


def _add_source(source: Any) -> None:
    """Adds the options for a run or an export, and for what an export does not record."""
    what = source.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--run", type=values.folder, metavar="DIR", dest="folder",
        help="folder of a run of staticgraph train",
    )  # fmt: skip
    what.add_argument(
        "--exported", type=values.folder, metavar="DIR",
        help="folder that runner.export wrote; it is code: serve your own, or give --digest",
    )  # fmt: skip
    source.add_argument(
        "--digest", type=values.words, help="with --exported: what the export returned"
    )
    source.add_argument(
        "--smiles", action="store_true",
        help="with --exported: its graphs are molecules with this library's features",
    )  # fmt: skip
    source.add_argument(
        "--task", choices=("binary", "classes"),
        help="with --exported: answer probabilities with the outputs",
    )  # fmt: skip


def _add_address(where: Any) -> None:
    """Adds the options for the address to listen on."""
    where.add_argument(
        "--host",
        type=values.words,
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine alone)",
    )
    where.add_argument(
        "--port",
        type=values.whole(0, 65535),
        default=8000,
        help="port to listen on; 0 takes a free one (default: 8000)",
    )


def _add_limits(limits: Any) -> None:
    """Adds the options for the waiting time and size of requests."""
    limits.add_argument(
        "--max-wait-ms", type=values.number(0, 60_000), default=5.0,
        help="milliseconds that a graph waits for others (default: 5)",
    )  # fmt: skip
    limits.add_argument(
        "--max-queue",
        type=values.whole(),
        default=4096,
        help="graphs that may wait (default: 4096)",
    )
    limits.add_argument(
        "--max-graphs",
        type=values.whole(),
        default=1024,
        help="maximum graphs in a request (default: 1024)",
    )
    limits.add_argument(
        "--max-body", type=values.byte_size, default=8 << 20, metavar="BYTES",
        help="maximum bytes in a request (default: 8MiB)",
    )  # fmt: skip


def _add_how(how: Any) -> None:
    """Adds the options for processes, device and mode."""
    how.add_argument(
        "--workers",
        metavar="N", type=values.whole(0, 64), default=1,
        help="processes that read requests, besides the model's (default: 1); 0: in the same one",
    )  # fmt: skip
    how.add_argument(
        "--device",
        type=values.device,
        default="auto",
        help="with --run: cpu, cuda, cuda:1, or auto (default: auto)",
    )
    how.add_argument(
        "--compile-mode",
        choices=MODES,
        default="auto",
        metavar="MODE",
        help=f"with --run: one of {', '.join(MODES)}, as for staticgraph train (default: auto)",
    )


def run(args: argparse.Namespace) -> int:
    """Serves until it is stopped."""
    require_extra()
    _check_fitting(args)
    if args.exported is None:
        require_trained(args.folder)
        args.model = named_in(args.folder)  # for error messages
    check_mode(args, args.compile_mode, args.device)
    load()
    check_mode(args, args.compile_mode, args.device)
    from staticgraph.serving.http.app import settle

    service = _service(args)
    settle()
    with service.server, listen(args.host, args.port) as listening:
        port = listening.getsockname()[1]
        served = args.exported or args.folder
        print(f"serving {served} on http://{args.host}:{port}, Ctrl-C stops it", file=sys.stderr)
        stopped = serve(service, listening, args.workers)
    if not stopped:
        return FAILED
    print(STOPPED, file=sys.stderr)
    return 0


def _check_fitting(args: argparse.Namespace) -> None:
    """Refuses options of a run for an export, and vice versa.

    Raises:
        ValueError: there is such an option.
    """
    if args.exported is not None:
        misplaced = [
            option
            for option, value in (("--device", args.device), ("--compile-mode", args.compile_mode))
            if value != "auto"
        ]
        why = "an export was compiled for its device already, in its own way"
    else:
        recorded = {"--digest": args.digest, "--smiles": args.smiles, "--task": args.task}
        misplaced = [option for option, value in recorded.items() if value]
        why = "a run says this of itself"
    if misplaced:
        raise ValueError(f"leave {' and '.join(misplaced)} out: {why}")


def _service(args: argparse.Namespace) -> Service:
    """Loads the service of the run or the export, and warms it up."""
    from staticgraph.serving.service import Limits, service_of_export, service_of_run

    limits = Limits(args.max_wait_ms, args.max_queue, args.max_graphs, args.max_body)
    if args.exported is None:
        return service_of_run(
            args.folder, device=args.device, mode=args.compile_mode, limits=limits
        )
    service = service_of_export(
        args.exported, digest=args.digest, smiles=args.smiles, task=args.task, limits=limits
    )
    for line in _lacking(service):
        print(line, file=sys.stderr)
    return service


def _lacking(service: Service) -> list[str]:
    """Messages for the user about information that an export does not record."""
    lines = []
    if not service.reader.smiles:
        lines.append("graphs only, no SMILES: with --smiles, where its features are this library's")
    if service.task is None:
        lines.append("outputs only, no probabilities: with --task, where they are logits")
    known = service.reader.categories
    if unchecked := [
        item.name
        for item in service.reader.fields
        if item.dtype.startswith(("int", "uint")) and item.name not in known
    ]:
        lines.append(
            f"any whole number is let through to {', '.join(unchecked)}: this export does not say "
            "how many categories there are, and one that the model has no row for fails its whole "
            "batch, or ends the server: refuse it before"
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

    from staticgraph.serving.http.app import LocalServer, config_of, make_app, reader_app
    from staticgraph.serving.http.remote import ReaderConnections

    server, reader, title, task = service
    if not workers:
        app = make_app(LocalServer(server, task, service.classes), reader, title)
        local = uvicorn.Server(config_of(app))
        # uvicorn shuts down gracefully, then raises the signal again for the previous handlers.
        ignored = [signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)]
        local.run([listening])
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), ignored, strict=True):
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


def _ignore(*_: object) -> None:
    """Ignores a signal."""


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
