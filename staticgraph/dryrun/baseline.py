"""The work that a training step gives a GPU, three ways: plain PyG, compiled stock layers, kernels.

The alternative to this library on a GPU is not only PyG in eager mode: the same model with fixed
shapes can be compiled without any of this library's kernels. So three numbers are compared: the
operations that plain PyG dispatches (each at least one launch), and the launches of the compiled
step for the largest bucket of the plan, without and with kernels, from a dry run
(:mod:`.start_child`). Checks of the runner that read numbers on the host are not part of a step and
are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.batches.loading.loader import StaticLoader
from staticgraph.checking.explain import CapturedStep
from staticgraph.dryrun.operations import OperationCounter, count_step
from staticgraph.dryrun.report import KINDS, PARTS
from staticgraph.dryrun.start_child import dry_run
from staticgraph.nn import convert
from staticgraph.plans.plan import BucketPlan
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.graph_store import GraphStore

EAGER = ("PyG", "static", "static, kernels")
STOCK, KERNELS = "stock, compiled", "kernels, compiled"
MODE = "reduce-overhead"


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
        edges = getattr(batch, "edge_attr", None)

        def forward() -> Tensor:
            """Plain PyG's mean loss, under autocast where a dtype is given."""
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                out = model(batch.x, batch.edge_index, edges, batch.batch, batch.num_graphs)
                return squared_error(out, batch).mean()
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


def operations_column(name: str, operations: OperationCounter) -> BaselineColumn:
    """Converts operations to a column."""
    return BaselineColumn(name, "operations", {part: operations.total(part) for part in PARTS})


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
