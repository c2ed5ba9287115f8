"""``staticgraph probe``: the memory of a model's training step, at any batch size.

Annotations are evaluated here, since ``staticgraph plan`` has these options too.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from staticgraph.cli.refusals import UsageError, require_names
from staticgraph.files.document import to_json
from staticgraph.text.how_many import how_many
from staticgraph.text.progress import waiting
from staticgraph.training.options import (
    BYTES,
    MODEL,
    OUTPUT_FILE,
    PICTURE_FILE,
    WHOLE,
    Gpu,
    ModelOptions,
    choice,
)

if TYPE_CHECKING:
    import torch

    from staticgraph.memory.memory_model import MemoryModel
    from staticgraph.steps.loss.mean_loss import Loss
    from staticgraph.store.graph_store import GraphStore

HOW = Parameter(group=Group.create_ordered("how"))


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class MeasuredStep(ModelOptions):
    """The options that select a model and its training step.

    Attributes:
        optimizer: optimizer of the step.
        autocast: dtype of forward and loss; the model's own if it is left out.
        kernels: with --compiled: rewrite the step to this library's kernels.
        accumulate: backward passes per update.
    """

    optimizer: Annotated[str, choice("adam", "adamw", "sgd"), MODEL] = "adam"
    autocast: Annotated[str | None, choice("bfloat16"), MODEL] = None
    kernels: Annotated[bool, MODEL] = False
    accumulate: Annotated[int, WHOLE, MODEL] = 1


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """The options of the measurement and the fit.

    Attributes:
        form: form of the fitted model, see docs/memory.md.
        device: device that a step runs on.
        like: on a CPU: count as this device's allocator would.
        compiled: with --like cuda: the step as torch's compiler writes it, for the compiled and
            the recorded modes; takes minutes.
        gpu: with --compiled: the device to compile for.
    """

    form: Annotated[str, choice("auto", "linear", "attention", "quadratic"), HOW] = "auto"
    device: Annotated[str, choice("cpu", "cuda"), HOW] = "cpu"
    like: Annotated[str, choice("cpu", "cuda"), HOW] = "cpu"
    compiled: Annotated[bool, HOW] = False
    gpu: Annotated[Gpu, HOW] = "h100"


def run(
    *,
    step: MeasuredStep,
    how: ProbeOptions = ProbeOptions(),
    max_memory: Annotated[int | None, BYTES] = None,
    out: Annotated[Path | None, OUTPUT_FILE] = None,
    plot: Annotated[Path | None, PICTURE_FILE] = None,
    json: bool = False,
) -> None:
    """Find the memory of a training step as a function of nodes, edges and graphs.

    For example:
      staticgraph probe --data examples/data/hiv.npz --model gps
      staticgraph probe --data examples/data/hiv.npz --model gps --out memory.json --plot memory.png
      staticgraph plan --data examples/data/hiv.npz --memory memory.json --max-memory 20GiB

    Without a GPU a step runs over fake tensors, in milliseconds and without memory: --like cuda
    counts it as a GPU's allocator would, and with --compiled as torch's compiler writes it. On a
    GPU, --device cuda runs real steps.

    Args:
        step: the model and its step.
        how: the measurement.
        max_memory: cap to show with the result, such as 20GiB.
        out: write the model of memory as JSON.
        plot: draw curve and points as a PNG; memory.png if no name is given.
        json: print JSON instead of a table.
    """
    if how.compiled and (how.like != "cuda" or how.device == "cuda"):
        raise UsageError("--compiled counts a step for a GPU that is not here: give --like cuda")
    require_names(step, step.model, step.loss)
    import torch

    from staticgraph.memory.budget import MemoryBudget
    from staticgraph.training import plots
    from staticgraph.training.build_run import open_step

    if how.device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "argument --device: torch sees no CUDA device; --device cpu --like cuda counts a step "
            "as a GPU's allocator would"
        )
    budget = MemoryBudget(max_memory) if max_memory else None
    opened = open_step(step)
    begin = time.perf_counter()
    memory = measure(opened, step, how)
    seconds = time.perf_counter() - begin
    if out:
        memory.save(out)
    title = f"{step.model} on {opened[0].name}"
    drawn = plot and plots.save_picture(plot, plots.draw_memory, memory, title, budget)
    if json:
        print(to_json({**memory.to_dict(), "seconds": seconds}))
    else:
        points = how_many(len(memory.points) + (memory.checked is not None), "point")
        print(f"{memory}\n{points} in {seconds:.1f} s")
    if drawn:
        print(f"picture: {plot}", file=sys.stderr)


def measure(
    opened: "tuple[GraphStore, Loss, torch.nn.Module]", step: MeasuredStep, how: ProbeOptions
) -> "MemoryModel":
    """The memory of the step that the options name.

    Args:
        opened: data, loss and model of the options, from
            :func:`staticgraph.training.build_run.open_step`; the model is converted.
        step: the model and its step.
        how: the measurement.
    """
    import torch

    from staticgraph.dryrun.compiled_probe import probe
    from staticgraph.nn import convert

    store, loss, model = opened
    convert(model.to(how.device), kernels=step.kernels)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    reader: dict[str, Any] = {"like": how.like, "compiled": how.compiled}
    if how.device == "cuda":
        reader = {"reader": "cuda"}
    with waiting(f"measuring steps of {step.model}" + (" as compiled" if how.compiled else "")):
        return probe(
            model,
            store,
            loss=loss,
            optimizer=kinds[step.optimizer](model.parameters(), lr=1e-3),
            form=how.form,
            autocast=torch.bfloat16 if step.autocast else None,
            accumulate=step.accumulate,
            target=how.gpu,
            **reader,
        )
