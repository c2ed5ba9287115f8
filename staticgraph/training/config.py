"""The settings of a training run: options, checked once, and the file that a run keeps of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from staticgraph.files import atomic
from staticgraph.training.options import (
    MACHINE,
    POSITIVE,
    RATE,
    TASKS,
    TRAINING,
    WHOLE,
    BatchSize,
    Device,
    Mode,
    ModelOptions,
    Seed,
    auto_or,
    choice,
    value,
    whole,
)

# The values of --schedule, and what the rate does.
SCHEDULES = {
    "constant": "does not change",
    "linear": "falls linearly to 0 over all steps",
    "cosine": "falls to 0 as half a cosine over all steps",
    "warmup-cosine": "rises linearly over the first tenth of the steps, then falls as cosine",
    "plateau": "halves when the validation loss has not fallen for 5 epochs",
}
# Schedules whose rate depends on the total number of steps.
NEED_THE_END = frozenset({"linear", "cosine", "warmup-cosine"})
WARMUP = 0.1
PATIENCE, FALL = 5, 0.5


def factor(schedule: str, step: int, steps: int, val_losses: Sequence[float | None]) -> float:
    """The learning rate of a step, as a share of the configured one.

    Args:
        schedule: a key of :data:`SCHEDULES`.
        step: the number of the step, from 0.
        steps: the total number of steps.
        val_losses: the validation losses of the epochs so far.
    """
    if schedule == "linear":
        return max(0.0, 1.0 - step / steps)
    if schedule == "cosine":
        return _cosine(step, steps)
    if schedule == "warmup-cosine":
        rise = max(1, round(WARMUP * steps))
        return (step + 1) / rise if step < rise else _cosine(step - rise, max(1, steps - rise))
    if schedule == "plateau":
        return FALL ** _plateaus(val_losses)
    return 1.0


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / steps)))


def _plateaus(val_losses: Sequence[float | None]) -> int:
    """How often the loss did not fall for :data:`PATIENCE` epochs."""
    best, since, plateaus = math.inf, 0, 0
    for loss in val_losses:
        if loss is not None and loss < best:
            best, since = loss, 0
            continue
        since += 1
        if since == PATIENCE:
            plateaus, since = plateaus + 1, 0
    return plateaus


def stands_still(val_losses: Sequence[float | None], epochs: int) -> bool:
    """Whether the validation loss has not fallen for this many epochs."""
    best, since = math.inf, 0
    for loss in val_losses:
        fell = loss is not None and loss < best
        best, since = (loss, 0) if fell and loss is not None else (best, since + 1)
    return since >= epochs


# Settings that may change when a run is resumed.
FREE = frozenset(
    {
        *("epochs", "device", "store", "workers", "compile_mode", "allow_cpu"),
        *("checkpoint_every", "early_stop"),
    }
)
# Sizes that do not apply to a ``module:build`` model.
SIZES = ("hidden", "layers", "dropout", "pool")
KERNELS = ("auto", "on", "off")
STORES = ("auto", "host", "device")
# float16 would need a gradient scaler, whose step cannot be recorded.
AUTOCAST = ("bfloat16",)
COUNTS = (
    *("hidden", "layers", "batch_size", "epochs", "checkpoint_every", "accumulate"),
    "early_stop",
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TrainConfig(ModelOptions):
    """The settings of a run, in addition to those of :class:`ModelOptions`.

    Attributes:
        batch_size: graphs per batch; all batches but the last have exactly this many.
        epochs: epochs in all, including those before a resume.
        lr: learning rate of Adam.
        schedule: how the learning rate changes: constant does not change; linear falls linearly to
            0 over all steps; cosine falls to 0 as half a cosine over all steps; warmup-cosine rises
            linearly over the first tenth of the steps, then falls as cosine; plateau halves when
            the validation loss has not fallen for 5 epochs.
        clip_norm: clip the norm of all gradients together to X; no limit if it is left out.
        accumulate: batches per update.
        autocast: dtype of forward and loss; the model's own if it is left out.
        early_stop: stop after this many epochs without a lower validation loss; never if it is left
            out.
        seed: seed of split, model and order.
        compile_mode: one of auto, eager, fused, default, reduce-overhead, max-autotune,
            max-autotune-no-cudagraphs, cuda-graph: torch's names, and fused and cuda-graph of this
            library; auto times several before the first step and keeps the fastest for each bucket:
            eager and fused on a CPU; eager, default (compiled) and cuda-graph (recorded) on CUDA.
        allow_cpu: allow modes that record CUDA graphs on a CPU, where they record nothing.
        device: cpu, cuda, cuda:1, or auto.
        kernels: kernels in place of the step's operations: on in every compiled mode, off in none,
            auto only where --compile-mode is or chooses fused.
        store: where the graphs are: auto is on CUDA where they fit a quarter of its free memory,
            else on the host; does not change results.
        workers: threads that fill batches; auto times the first steps; does not change results.
        checkpoint_every: steps between checkpoints within an epoch, which also ends with one.

    Raises:
        ValueError: a setting is out of range; the message names it.
    """

    batch_size: Annotated[BatchSize, Parameter(group=TRAINING, metavar="SIZE")] = 128
    epochs: Annotated[int, WHOLE, Parameter(group=TRAINING)] = 3
    lr: Annotated[float, RATE, Parameter(group=TRAINING)] = 1e-3
    schedule: Annotated[str, choice(*SCHEDULES), Parameter(group=TRAINING)] = "constant"
    clip_norm: Annotated[float | None, POSITIVE, Parameter(group=TRAINING, metavar="X")] = None
    accumulate: Annotated[int, WHOLE, Parameter(group=TRAINING, metavar="K")] = 1
    autocast: Annotated[str | None, choice(*AUTOCAST), Parameter(group=TRAINING)] = None
    early_stop: Annotated[int | None, WHOLE, Parameter(group=TRAINING, metavar="EPOCHS")] = None
    seed: Annotated[Seed, Parameter(group=TRAINING)] = 0
    compile_mode: Annotated[Mode, Parameter(group=MACHINE, show_choices=False)] = "auto"
    allow_cpu: Annotated[bool, Parameter(group=MACHINE)] = False
    device: Annotated[Device, Parameter(group=MACHINE)] = "auto"
    kernels: Annotated[str, choice(*KERNELS), Parameter(group=MACHINE)] = "auto"
    store: Annotated[str, choice(*STORES), Parameter(group=MACHINE)] = "auto"
    workers: Annotated[
        int | str, value(auto_or(whole(0, 256)), metavar="N"), Parameter(group=MACHINE)
    ] = 0
    checkpoint_every: Annotated[int, WHOLE, Parameter(group=MACHINE, metavar="STEPS")] = 100

    def __post_init__(self) -> None:
        if not isinstance(self.target, str | None):  # a list, from the command line or TOML
            several = tuple(self.target)
            object.__setattr__(self, "target", several[0] if len(several) == 1 else several or None)
        for name in COUNTS:
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name}={count} must be at least 1")
        for name, names in (
            ("task", TASKS),
            ("schedule", tuple(SCHEDULES)),
            ("autocast", (None, *AUTOCAST)),
            ("kernels", KERNELS),
            ("store", STORES),
        ):
            if getattr(self, name) not in names:
                known = ", ".join(name for name in names if name)
                raise ValueError(f"{name}={getattr(self, name)!r}; choose one of {known}")
        if self.kernels == "off" and self.compile_mode == "fused":
            raise ValueError(
                "compile_mode='fused' is made of the fused kernels, and kernels='off' leaves them "
                "out: give one of the two"
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm={self.clip_norm} must be a number above 0")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr={self.lr} must be a number above 0")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout={self.dropout} is a share, 0 to 1")
        if isinstance(self.workers, str) and self.workers != "auto":
            raise ValueError(f"workers={self.workers!r}; give a number, or 'auto'")
        for name in ("seed", "workers"):
            if (count := getattr(self, name)) != "auto" and count < 0:
                raise ValueError(f"{name}={count} must not be negative")

    def save(self, path: str | Path) -> None:
        """Writes all settings that have a value as TOML, so that ``--config`` starts the same run
        again; sizes of the zoo are omitted for a ``module:build`` model."""
        omitted = SIZES if ":" in self.model else ()
        lines = [
            f"{name} = {_toml(setting)}"
            for name, setting in asdict(self).items()
            if setting is not None and name not in omitted
        ]
        atomic.write_text(path, "\n".join(lines) + "\n")


def _toml(setting: Any) -> str:
    if isinstance(setting, tuple):
        return f"[{', '.join(map(_toml, setting))}]"
    if isinstance(setting, bool):
        return "true" if setting else "false"
    if isinstance(setting, str):  # a JSON string is a TOML string, except for this character
        return json.dumps(setting, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(setting)
