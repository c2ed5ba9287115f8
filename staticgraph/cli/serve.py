"""``staticgraph serve``: answers requests for a trained model over HTTP."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from staticgraph.cli import FAILED
from staticgraph.cli.failures import note_user_code
from staticgraph.cli.loading import UsageError, check_mode, load
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
from staticgraph.training.run_folder import named_in, require_trained

if TYPE_CHECKING:
    from staticgraph.serving.service import Service

STOPPED = "all accepted requests are answered; stopped"
SOURCE = Group.create_ordered("what is served (one of --run and --exported)")
PLACE = Group.create_ordered("where")
LIMITS = Group.create_ordered("requests")
HOW = Group.create_ordered("how")


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

    folder: Annotated[Path | None, FOLDER, Parameter(name="--run", group=SOURCE)] = None
    exported: Annotated[Path | None, FOLDER, Parameter(group=SOURCE)] = None
    digest: Annotated[str | None, WORDS, Parameter(group=SOURCE)] = None
    smiles: Annotated[bool, Parameter(group=SOURCE)] = False
    task: Annotated[str | None, choice("binary", "classes"), Parameter(group=SOURCE)] = None
    host: Annotated[str, WORDS, Parameter(group=PLACE)] = "127.0.0.1"
    port: Annotated[int, value(whole(0, 65535)), Parameter(group=PLACE)] = 8000
    max_wait_ms: Annotated[
        float, value(number(0, 60_000), metavar="MS"), Parameter(group=LIMITS)
    ] = 5.0
    max_queue: Annotated[int, WHOLE, Parameter(group=LIMITS)] = 4096
    max_graphs: Annotated[int, WHOLE, Parameter(group=LIMITS)] = 1024
    max_body: Annotated[int, BYTES, Parameter(group=LIMITS, metavar="BYTES")] = 8 << 20
    workers: Annotated[int, value(whole(0, 64), metavar="N"), Parameter(group=HOW)] = 1
    device: Annotated[Device, Parameter(group=HOW)] = "auto"
    compile_mode: Annotated[Mode, Parameter(group=HOW)] = "auto"


def run(*, options: ServeOptions | None = None) -> int:
    """Answer requests for a trained model over HTTP.

    examples:
      staticgraph serve --run runs/hiv
      staticgraph serve --exported exported/hiv --digest 5f1e... --smiles --task binary
      curl -s localhost:8000/predict -d '{"smiles": ["CCO"]}' -H 'Content-Type: application/json'

    Requests of many callers run together, in the few shapes of the run's plan. The page at /
    predicts a molecule, where the run was trained on SMILES. Ctrl-C answers what waits, then stops.
    There are no accounts and no encryption: beyond this machine, put a proxy before it.

    Args:
        options: the options.

    Raises:
        UsageError: neither or both of --run and --exported are given.
    """
    args = options or ServeOptions()
    if (args.folder is None) == (args.exported is None):
        raise UsageError("give one of --run and --exported")
    require_extra()
    _check_fitting(args)
    if args.folder is not None:
        require_trained(args.folder)
        note_user_code(named_in(args.folder))
    check_mode(args.compile_mode, args.device)
    load()
    check_mode(args.compile_mode, args.device)
    from staticgraph.serving.processes.own_process import settle

    service = _service(args)
    settle()
    with service.server:
        return _beside(service, args) if args.workers else _here(service, args)


def _check_fitting(args: ServeOptions) -> None:
    """Refuses options of a run for an export, and vice versa.

    Raises:
        ValueError: such an option was options.
    """
    if args.exported is not None:
        options = [
            option
            for option, value in (("--device", args.device), ("--compile-mode", args.compile_mode))
            if value != "auto"
        ]
        why = "an export was compiled for its device already, in its own way"
    else:
        description = {"--digest": args.digest, "--smiles": args.smiles, "--task": args.task}
        options = [option for option, value in description.items() if value]
        why = "a run says this of itself"
    if options:
        raise ValueError(f"leave {' and '.join(options)} out: {why}")


def _service(args: ServeOptions) -> Service:
    """Loads the service of the run or the export, and warms it up."""
    limits: dict[str, Any] = {
        "max_wait_ms": args.max_wait_ms,
        "max_queue": args.max_queue,
        "most_graphs": args.max_graphs,
        "most_bytes": args.max_body,
    }
    if args.folder is not None:
        from staticgraph.serving.from_run import service_of_run

        return service_of_run(args.folder, device=args.device, mode=args.compile_mode, **limits)
    from staticgraph.serving.from_export import service_of_export

    assert args.exported is not None
    description = {"digest": args.digest, "smiles": args.smiles, "task": args.task}
    service = service_of_export(args.exported, **description, **limits)
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
    if open_ := [
        item.name
        for item in service.reader.fields
        if item.dtype.startswith(("int", "uint")) and item.name not in known
    ]:
        lines.append(
            f"any whole number is let through to {', '.join(open_)}: this export does not say how "
            "many categories there are, and one that the model has no row for fails its whole "
            "batch, or ends the server: refuse it before"
        )
    return lines


def _say(args: ServeOptions) -> None:
    print(
        f"serving {args.exported or args.folder} on {args.host}, Ctrl-C stops it", file=sys.stderr
    )


def _here(service: Service, args: ServeOptions) -> int:
    """Serves with bodies read in this process."""
    import uvicorn

    from staticgraph.serving.http.app import make_app
    from staticgraph.serving.http.backend import LocalBackend
    from staticgraph.serving.http.uvicorn_config import config_of

    app = make_app(LocalBackend(service.server), service.reader, service.title, service.task)
    server = uvicorn.Server(config_of(app, host=args.host, port=args.port, log_level="info"))
    _say(args)

    # uvicorn shuts down gracefully, then raises the signal again for the previous handlers.
    def stop(*_: object) -> None:
        """Tells uvicorn to stop after it has answered the waiting requests."""
        server.should_exit = True

    with _stopped_by(stop), suppress(SystemExit):  # a taken port, say, after its message
        server.run()
    if not server.started:
        return FAILED
    print(STOPPED, file=sys.stderr)
    return 0


def _beside(service: Service, args: ServeOptions) -> int:
    """Serves with bodies read in worker processes."""
    from staticgraph.serving.processes.worker_pool import Workers

    workers = Workers(*service, args.workers, args.host, args.port)
    _say(args)
    with _stopped_by(workers.tell):
        try:
            workers.wait_ready()
            print(f"running on http://{workers.host}:{workers.port}", file=sys.stderr, flush=True)
            stopped = workers.wait()
            if not stopped:
                print("a process that reads requests ended by itself; stopping", file=sys.stderr)
        finally:
            workers.stop()
    print(STOPPED, file=sys.stderr)
    return 0 if stopped else FAILED


@contextmanager
def _stopped_by(tell: Callable[..., None]) -> Iterator[None]:
    """While the block runs, Ctrl-C and SIGTERM call ``tell`` and do nothing else: stopping is the
    normal end of a server, so it exits with status 0, as uvicorn and gunicorn do."""
    stops = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, tell) for number in stops]
    try:
        yield
    finally:
        for number, handler in zip(stops, before, strict=True):
            signal.signal(number, handler)


def require_extra() -> None:
    """Checks that the packages of the extra ``serve`` are installed.

    Raises:
        MissingPackage: a package is missing.
    """
    for package in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackage(
                f"serving needs the package {package!r}, which is not installed: "
                "pip install fastapi uvicorn"
            )
