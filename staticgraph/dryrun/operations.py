"""The number of operations that a step gives a device, part by part; needs no GPU.

A recorded step costs about the number of its kernels times two microseconds, an unrecorded one at
least three times that, so this is the number that fusion must lower. Operations are counted where
torch dispatches them: views, allocations and host reads of a number are not operations (host reads
are counted separately, since none can be recorded). One dispatch is one operation, whether torch's
or this library's, except for the linear layer, which counts as its products, ReLU and sums on CUDA.

Operations are not launches: torch's BatchNorm makes two or three, the backward of a large embedding
a sort and more. The launches of this library's operators are known (:data:`MORE_LAUNCHES`) and
counted as well; each of torch's counts as one there, so that the number favors the stock step. On a
GPU :func:`kernels_on_cuda` counts exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from staticgraph.dryrun.launches import NOTHING, READS
from staticgraph.dryrun.report import PARTS
from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.kernels.batch_norm.op import launches as norm_launches
from staticgraph.kernels.linear.op import backward_launches, launches
from staticgraph.kernels.neighbours.cpu import parts
from staticgraph.kernels.neighbours.program import program_of

# Launches on CUDA in addition to the first, as in the gpu.py of each operator.
MORE_LAUNCHES = {
    "staticgraph::collate": 1,
    "staticgraph::table_sum_backward": 1,
}


class OperationCounter(TorchDispatchMode):
    """Counts what torch dispatches while it is entered.

    Attributes:
        part: of :data:`PARTS`; what is dispatched from now on counts for it.
        counts: operations by part and operator name.
        launches: a lower bound on the launches on CUDA in the whole step.
        host_reads: numbers that the host waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.part: str = PARTS[0]
        self.counts: dict[str, Counter[str]] = {part: Counter() for part in PARTS}
        self.launches: int = 0
        self.host_reads: int = 0

    def total(self, part: str | None = None) -> int:
        """The number of operations in a part, or in all."""
        return sum(c.total() for name, c in self.counts.items() if part in (None, name))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().split(".")[0]
        short = name.split("::")[1]
        if short in READS or short == "nonzero":
            self.host_reads += 1
        elif not (func.is_view or short in NOTHING or short == "scalar_tensor"):
            count = operations(name, args)
            self.counts[self.part][name] += count
            self.launches += count + further_launches(name, args)
        return func(*args, **(kwargs or {}))


def operations(name: str, args: tuple[Any, ...]) -> int:
    """The operations that an operator counts as: a linear layer as its launches on the device."""
    if name == "staticgraph::linear":
        x, weight, bias, relu, dtype = args
        return launches(x, weight, dtype, relu, bias is not None)
    if name == "staticgraph::linear_backward":
        grad, x, weight, out, *_ = args
        return backward_launches(grad, x, weight, out is not None)
    return 1


def further_launches(name: str, args: tuple[Any, ...]) -> int:
    """The launches on CUDA of one of this library's operators in addition to the first."""
    if name == "staticgraph::neighbours":
        square = args[3][2].shape == args[3][3].shape
        return len(parts(program_of(args[0]), False, square)) - 1
    if name == "staticgraph::batch_norm":
        return norm_launches(args[0], args[8] is not None and args[9] is None) - 1
    if name == "staticgraph::batch_norm_backward":
        return norm_launches(args[1], False) - 1
    return MORE_LAUNCHES.get(name, 0)


def count_step(
    forward: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> OperationCounter:
    """Counts one training step, after setting the gradients to None, as in every step.

    Args:
        forward: returns the mean loss.
        optimizer: must have stepped before, so that its state exists.
    """
    optimizer.zero_grad(set_to_none=True)
    with OperationCounter() as counter:
        loss = forward()
        counter.part = "backward"
        loss.backward()
        counter.part = "optimizer"
        optimizer.step()
    return counter


def kernels_on_cuda(step: Callable[[], Any]) -> int:
    """The number of kernels that a step actually launches, by torch's profiler; needs CUDA."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    on_device = [e for e in profile.events() or [] if str(e.device_type).endswith("CUDA")]
    return sum(not e.name.startswith(("Memcpy", "Memset")) for e in on_device)
