"""The processes of one job, and what they exchange apart from gradients.

The problem: a job hangs if one process enters a collective and another does not, so every decision
about what runs next must be the same on every rank. The idea: a few calls, each of which returns
the same result on every rank, over small values on the host. An error that only one rank could find
(a different plan, a different model, too small a device) is raised on all ranks, before the first
step.

This module does not start processes; use ``torchrun``.

All ranks have one memory cap: that of the smallest device.
"""

from __future__ import annotations

import hashlib
import pickle
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from staticgraph.errors import NotStatic, RankLost
from staticgraph.memory.budget import MemoryBudget


def smallest_budget(budget: MemoryBudget, ranks: Ranks | None) -> MemoryBudget:
    """The budget that all ranks use: of the ranks' budgets, the one that leaves least for steps.

    All ranks take the same buckets, so the plan fits the job if it fits the smallest device. A plan
    that does not fit is refused on all ranks, before anything is recorded.

    Args:
        budget: the budget of this rank's device.
        ranks: the processes of the job; if None, the budget is returned unchanged.
    """
    if ranks is None:
        return budget
    sizes = ranks.gather_objects(
        (
            budget.max_bytes - budget.data_set_bytes,
            budget.max_bytes,
            budget.driver_bytes,
            budget.headroom_bytes,
            budget.device,
            budget.data_set_bytes,
        )
    )
    rank = min(range(len(sizes)), key=lambda number: (sizes[number][0], number))
    _, most, driver, headroom, device, data_set = sizes[rank]
    return replace(
        budget,
        max_bytes=most,
        driver_bytes=driver,
        headroom_bytes=headroom,
        device=f"rank {rank}: {device}",
        data_set_bytes=data_set,
    )


# The most characters of each of two values that differ, in a message.
LONGEST = 80


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that train one model.

    The group belongs to torch and is held by a weak reference. A strong one would keep gloo's
    threads alive after ``dist.destroy_process_group()`` until the interpreter exits, which
    occasionally aborts it (pytorch/pytorch#179291).

    Attributes:
        rank: this process's number in the group.
        world_size: the number of processes in the group.
        backends: the backends of the group, such as ``gloo`` or ``cpu:gloo,cuda:nccl``.
        device: the device of what is trained; None for the current CUDA device.
    """

    _group: weakref.ref[dist.ProcessGroup]
    rank: int
    world_size: int
    backends: str
    device: torch.device | None = None

    @classmethod
    def of(
        cls, group: dist.ProcessGroup | None = None, device: torch.device | None = None
    ) -> Ranks:
        """The processes of a group, by default all processes of the job.

        Raises:
            ValueError: this process is not in the group.
        """
        if group is None:
            group = dist.distributed_c10d._get_default_group()
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError("this process is not in the group that was given as distributed=")
        backends = str(dist.get_backend_config(group))
        return cls(weakref.ref(group), rank, dist.get_world_size(group), backends, device)

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group.

        Raises:
            RuntimeError: the group was destroyed.
        """
        group = self._group()
        if group is None:
            raise RuntimeError(
                "the process group of this job was destroyed: make the runner after "
                "dist.init_process_group(), and use it before dist.destroy_process_group()"
            )
        return group

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and reports for all ranks."""
        return self.rank == 0

    @property
    def host(self) -> torch.device:
        """The device of small values that are exchanged: the CPU if the group supports it."""
        if "gloo" in self.backends or "mpi" in self.backends:
            return torch.device("cpu")
        return self.device or torch.device("cuda", torch.cuda.current_device())

    def can_record(self, device: torch.device) -> bool:
        """Whether a CUDA graph can record the group's reductions of tensors on a device."""
        return device.type == "cuda" and "nccl" in self.backends

    # ------------------------------------------------------------------ exchanging values

    def gathered(self, value: Tensor) -> list[Tensor]:
        """Every rank's tensor, in the order of ranks, on the CPU.

        Args:
            value: ``[n, ...]``, with the same dtype and trailing shape on all ranks; ``n`` may
                differ.
        """
        value = value.detach().to(self.host)
        counts = torch.zeros(self.world_size, dtype=torch.int64, device=self.host)
        counts[self.rank] = len(value)
        dist.all_reduce(counts, group=self.group)
        most = int(counts.max())
        padded = value.new_zeros((most, *value.shape[1:]))
        padded[: len(value)] = value
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded, group=self.group)
        return [p[:n].cpu() for p, n in zip(parts, counts.tolist(), strict=True)]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every rank's object, in the order of ranks; for small objects and infrequent calls."""
        written = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        return [pickle.loads(part.numpy().tobytes()) for part in self.gathered(written)]

    def from_first(self, value: Any) -> Any:
        """Rank 0's object, on every rank."""
        held = [value if self.first else None]
        source = dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(held, source, group=self.group, device=self.host)
        return held[0]

    def largest(self, value: float) -> float:
        """The largest of the ranks' numbers."""
        return self.maxima([value])[0]

    def maxima(self, values: Sequence[float]) -> list[float]:
        """The largest of the ranks' numbers at every position."""
        numbers = torch.tensor([*values], dtype=torch.float64, device=self.host)
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.group)
        return numbers.tolist()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some rank."""
        return self.largest(flag) > 0

    def all(self, flag: bool) -> bool:
        """Whether the flag is set on every rank."""
        return not self.any(not flag)

    def wait(self) -> None:
        """Waits until every rank has called this."""
        self.any(False)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A ``with`` block that raises on every rank if it raises on one.

        Every rank enters it, and none enters a collective in it that another may not reach.

        Raises:
            NotStatic: another rank raised this.
            RankLost: another rank raised something else.
        """
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
        text = None if error is None else f"{type(error).__name__}: {error}"
        try:
            failures = self.gather_objects((text, isinstance(error, NotStatic)))
        finally:
            if error is not None:
                raise error
        for rank, (failure, static) in enumerate(failures):
            if failure is not None:
                kind = NotStatic if static else RankLost
                raise kind(f"rank {rank} ended with {failure}")

    def check_alike(self, values: Mapping[str, Any]) -> None:
        """Refuses values that are not the same on all ranks; every rank raises.

        Args:
            values: values by a name for the error message; compared by their ``repr``.

        Raises:
            ValueError: a rank's value differs from rank 0's; the message has both.
        """
        texts = {name: repr(value) for name, value in values.items()}
        digest = hashlib.sha256(repr(texts).encode()).digest()[:8]
        numbers = self.gathered(torch.from_numpy(np.frombuffer(digest, np.int64).copy()))
        if len({int(number) for number in numbers}) == 1:
            return
        first, *others = self.gather_objects(texts)
        for name in dict.fromkeys((*first, *(key for other in others for key in other))):
            differing = [
                r for r, other in enumerate(others, 1) if other.get(name) != first.get(name)
            ]
            if not differing:
                continue
            theirs, ours = _excerpts(others[differing[0] - 1].get(name), first.get(name))
            raise ValueError(
                f"{name} of rank {', '.join(map(str, differing))} differs from rank 0's: {theirs} "
                f"on rank {differing[0]}, {ours} on rank 0. Every process of a job makes the same "
                "model, plan and loaders: make the plan once and load it from its file, and give "
                "all the same data, indices and seed"
            )

    @torch.no_grad()
    def take_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank 0's values to every rank, in place."""
        source = dist.get_global_rank(self.group, 0)
        for tensor in tensors:
            dist.broadcast(tensor.detach(), source, group=self.group)


def _excerpts(text: str | None, other: str | None) -> tuple[str, str]:
    """The parts of two texts from shortly before the first place where they differ."""
    text, other = text or "nothing", other or "nothing"
    pairs = enumerate(zip(text, other, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), 0)
    begin = max(0, same - LONGEST // 4) if max(len(text), len(other)) > LONGEST else 0
    cut = slice(begin, begin + LONGEST)
    return text[cut], other[cut]


def ranks_for(
    distributed: str | dist.ProcessGroup, device: torch.device | None = None
) -> Ranks | None:
    """The processes that train together; None if this process trains alone.

    Args:
        distributed: ``"auto"``: all processes, if ``torch.distributed`` is initialized and there is
            more than one; ``"off"``: None; or a process group.
        device: the device of what is trained.

    Raises:
        ValueError: another string, or a group that this process is not in.
    """
    if isinstance(distributed, str):
        if distributed not in ("auto", "off"):
            raise ValueError(
                f"distributed={distributed!r}; give 'auto', 'off' or a process group of "
                "torch.distributed"
            )
        if distributed == "off" or not dist.is_available() or not dist.is_initialized():
            return None
        return Ranks.of(device=device) if dist.get_world_size() > 1 else None
    return Ranks.of(distributed, device)


def check_not_wrapped(model: torch.nn.Module) -> None:
    """Refuses a model whose gradients are already averaged, or whose parameters are sharded.

    Raises:
        ValueError: a module of the model is one of torch's wrappers.
    """
    for path, module in model.named_modules():
        kinds = [kind.__name__ for kind in type(module).__mro__]
        wrappers = [kind for kind in kinds if kind in _WRAPPERS]
        if not wrappers:
            continue
        where = f"{path!r} of the model" if path else "the model"
        raise ValueError(
            f"{where} is wrapped in {wrappers[0]}, which {_WRAPPERS[wrappers[0]]}: give the runner "
            "the module inside (model.module), and it averages the gradients itself; or pass "
            "distributed='off' and train it yourself with runner(batch)"
        )


_MEAN = "takes the mean over ranks, so that a half-empty batch counts as much as a full one"
_WRAPPERS = {
    "DistributedDataParallel": _MEAN,
    "DataParallel": "splits a batch of fixed shape over devices",
    "FullyShardedDataParallel": "keeps parameters in pieces, which a recorded step cannot read",
    "FSDPModule": "keeps parameters in pieces, which a recorded step cannot read",
}
