"""The work that a training step gives a GPU, three ways: plain PyG, compiled stock layers, kernels.

The alternative to this library on a GPU is not only PyG in eager mode: the same model with fixed
shapes can be compiled without any of this library's kernels. So three numbers are compared: the
operations that plain PyG dispatches (each at least one launch), and the launches of the compiled
step for the largest bucket of the plan, without and with kernels, from a dry run
(:mod:`.start_child`). A recorded step costs about the number of its kernels times two microseconds,
an unrecorded one at least three times that, so this is the number that fusion must lower.

Operations are counted where torch dispatches them: views, allocations and host reads of a number
are not operations (host reads are counted separately, since none can be recorded). One dispatch is
one operation, whether torch's or this library's, except for the linear layer, which counts as its
products, ReLU and sums on CUDA. Checks of the runner that read numbers on the host are not part of
a step and are not counted.

Operations are not launches: torch's BatchNorm makes two or three, the backward of a large embedding
a sort and more. The launches of this library's operators are known (:data:`MORE_LAUNCHES`) and
counted as well; each of torch's counts as one there, so that the number favors the stock step. On a
GPU :func:`kernels_on_cuda` counts exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.explain import CapturedStep
from staticgraph.dryrun.launches import NOTHING, READS
from staticgraph.dryrun.report import KINDS, PARTS
from staticgraph.dryrun.start_child import dry_run
from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.kernels.batch_norm.op import launches as norm_launches
from staticgraph.kernels.linear.op import backward_launches, launches
from staticgraph.kernels.neighbours.cpu import parts
from staticgraph.kernels.neighbours.program import program_of
from staticgraph.nn import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_call import forward_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.graph_store import GraphStore

EAGER = ("PyG", "static", "static, kernels")
STOCK, KERNELS = "stock, compiled", "kernels, compiled"
MODE = "reduce-overhead"
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


@dataclass(frozen=True, slots=True)
class BaselineColumn:
    """One way to run a step.

    Attributes:
        name: of :data:`EAGER`, :data:`STOCK` or :data:`KERNELS`.
        unit: ``operations`` or ``launches``.
        parts: maps forward, backward and optimizer to their numbers.
        kinds: maps kinds of launches to their numbers, where launches were counted.
    """

    name: str
    unit: str
    parts: dict[str, int]
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def step(self) -> int:
        """The sum of all parts."""
        return sum(self.parts.values())


def squared_error(out: Tensor, batch: Any) -> Tensor:
    """A loss that plain PyG and a child process can use as well: one value per graph, of its first
    target."""
    target = batch.y.view(out.size(0), -1)[:, 0]
    return F.mse_loss(out.view(-1), target.float(), reduction="none")


def dispatched(
    name: str, model: torch.nn.Module, store: GraphStore, plan: BucketPlan, dtype: Any = None
) -> OperationCounter:
    """Counts one eager step's operations, after a first optimizer step that is not counted.

    Args:
        name: of :data:`EAGER`; ``static`` is the plan's largest bucket as a compiled step sees it,
            with unknown real counts; with kernels it runs as in mode ``fused``.
        model: is converted in place, except for ``PyG``.
        store, plan: the source of the first batch, which is used.
        dtype: of autocast, or None.
    """
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    if name == "PyG":
        from torch_geometric.data import Batch

        graphs: Any = [store[i] for i in range(min(plan.batch_size or 1, len(store)))]
        batch: Any = Batch.from_data_list(graphs)
        call = forward_of(model)

        def forward() -> Tensor:
            """Plain PyG's mean loss, under autocast where a dtype is given."""
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                return squared_error(call(model, batch), batch).mean()
    else:
        convert(model)
        batch = next(iter(StaticLoader(store, plan, shuffle=False))).clone()
        batch.real = None
        subject = Subject(model, squared_error, autocast=dtype, check_padding=False)
        computation = Computation(subject)
        if name.endswith("kernels"):
            forward = CapturedStep(computation, "step", batch)
        else:

            def forward() -> Tensor:
                """The mean loss over the real rows of the batch."""
                with computation.active():
                    return computation.run("step", batch)

    forward().backward()
    optimizer.step()
    return count_step(forward, optimizer)


def operations_column(name: str, counted: OperationCounter) -> BaselineColumn:
    """Converts operations to a column."""
    return BaselineColumn(name, "operations", {part: counted.total(part) for part in PARTS})


def launched(
    model: torch.nn.Module, plan: BucketPlan, target: str, kernels: bool, dtype: Any = None
) -> tuple[BaselineColumn, str]:
    """Counts the launches of the compiled step for the plan's largest bucket by a dry run.

    Returns:
        The column, and the label of the dry run.

    Raises:
        DryRunUnavailable: a dry run cannot work on this machine.
        RuntimeError: the step does not compile, or is not recorded whole.
    """
    report = dry_run(
        model,
        plan,
        target,
        loss=squared_error,
        modes=[MODE],
        phases=["step"],
        kernels=kernels,
        autocast=dtype,
        compile_kernels=False,
    )
    largest = max(range(len(plan.capacities)), key=lambda k: plan.capacities[k].nodes)
    run = report.run(MODE, bucket=largest)
    if not run.ok:
        raise RuntimeError(f"the step does not record whole, so nothing is counted:\n{report}")
    kinds = {kind: run.count(kind=kind) for kind in sorted(KINDS)}
    column = BaselineColumn(
        KERNELS if kernels else STOCK,
        "launches",
        {part: run.count(part) for part in PARTS},
        {kind: number for kind, number in kinds.items() if number},
    )
    return column, report.label


def kernels_on_cuda(step: Callable[[], Any]) -> int:
    """The number of kernels that a step actually launches, by torch's profiler; needs CUDA."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    on_device = [e for e in profile.events() or [] if str(e.device_type).endswith("CUDA")]
    return sum(not e.name.startswith(("Memcpy", "Memset")) for e in on_device)
