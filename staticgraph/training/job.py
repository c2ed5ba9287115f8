"""This process: its device, its machine, and its role in a job that ``torchrun`` started.

``torchrun`` sets a process's rank in the environment. Rank 0 locks the folder, writes files and
prints; the others only train. While rank 0 does something alone (downloading a data set, reading a
checkpoint), the others wait, and if it fails they end with its message.

Ctrl-C in the middle of an optimizer step would leave half of the parameters updated, a state that
no checkpoint should keep. So the first signal only sets a flag, which the loop reads after each
step; the second one stops immediately.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from staticgraph.distributed.lost_rank import Watching
from staticgraph.distributed.ranks import Ranks, ranks_for
from staticgraph.files.folder_lock import folder_lock
from staticgraph.files.versions import STEPS, versions
from staticgraph.store.on_device import require_there

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; its checkpoint has the full state."""


class Interrupt:
    """A context in which Ctrl-C and SIGTERM set :attr:`requested`.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """

    requested: bool = False

    def __enter__(self) -> Interrupt:
        numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        self._before = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class Alone(Ranks):
    """A process that trains alone: every exchange returns its own value."""

    def gathered(self, value: Tensor) -> list[Tensor]:
        """The tensor, on the CPU."""
        return [value.detach().cpu()]

    def from_first(self, value: Any) -> Any:
        """The value."""
        return value

    def maxima(self, values: Sequence[float]) -> list[float]:
        """The values."""
        return [*values]


_no_group: Any = None
ALONE = Alone(_no_group, 0, 1, "")
Result = TypeVar("Result")


@contextmanager
def joined(folder: Path) -> Iterator[Ranks]:
    """Joins the job that trains in a folder, which rank 0 locks, while the block runs; yields
    :data:`ALONE` if this process is its only one.

    Raises:
        RankLost: another process of the job is gone.
        FolderInUse: another job trains in the folder.
    """
    creates = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if creates:
        cuda = torch.cuda.is_available() and dist.is_nccl_available()
        # Keys for this attempt only: after a restart, the store still has addresses of dead
        # processes.
        store, rank, size = next(rendezvous("env://"))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"staticgraph/{attempt}", store)
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    several = ranks_for("auto")
    ranks = several or ALONE
    try:
        with Watching(several), ExitStack() as locked:
            first_alone(ranks, lambda: locked.enter_context(folder_lock(folder)))
            yield ranks
    finally:
        if creates and dist.is_initialized():
            dist.destroy_process_group()


def first_alone(ranks: Ranks, action: Callable[[], Result]) -> Result | None:
    """Runs an action on rank 0 and returns its result; the others wait, and return None.

    Raises:
        RankLost: on the other ranks, if the action failed.
    """
    with ranks.together():
        return action() if ranks.first else None


def device_of(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device with a name; ``auto`` is CUDA if available, else the CPU.

    With several ranks, ``cuda`` is each rank's own GPU, which also becomes the current device of
    the process: otherwise every rank would create a context on the first GPU, and collectives would
    run there.

    Raises:
        ValueError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and ranks.world_size > 1:
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = require_there(name)
    if device.type == "cuda" and ranks.world_size > 1:
        torch.cuda.set_device(device)
    return device


def machine() -> dict[str, Any]:
    """Where and when something is measured, and with which versions, for every file of results.

    ``capability`` is the vector width that torch's kernels use, ``threads`` those of torch, and
    ``load`` the runnable processes of the last minute.
    """
    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": versions(STEPS),
    }


def processor() -> str:
    """The processor's name, as Linux states it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
