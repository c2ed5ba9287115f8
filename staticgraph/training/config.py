"""The settings of a training run, and the files of its folder.

Nothing here imports torch, so that a folder without a run is refused quickly.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter, Token

from staticgraph.files import atomic
from staticgraph.training.options import (
    MACHINE,
    POSITIVE,
    RATE,
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

SCHEDULES = ("constant", "linear", "cosine", "warmup-cosine", "plateau")
# Schedules whose rate depends on the total number of steps.
NEED_THE_END = frozenset({"linear", "cosine", "warmup-cosine"})
WARMUP = 0.1
PATIENCE, FALL = 5, 0.5


def factor(schedule: str, step: int, steps: int, val_losses: Sequence[float | None]) -> float:
    """The learning rate of a step, as a share of the configured one.

    Args:
        schedule: one of :data:`SCHEDULES`.
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
        return FALL ** sum(n > 0 and n % PATIENCE == 0 for n in _without_gain(val_losses))
    return 1.0


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / steps)))


def _without_gain(val_losses: Sequence[float | None]) -> list[int]:
    """After each epoch, the number of epochs since the loss last fell."""
    best, since = math.inf, [0]
    for loss in val_losses:
        fell = loss is not None and loss < best
        best = loss if fell and loss is not None else best
        since.append(0 if fell else since[-1] + 1)
    return since[1:]


def stands_still(val_losses: Sequence[float | None], epochs: int | None) -> bool:
    """Whether the validation loss has not fallen for this many epochs; never if None."""
    return epochs is not None and _without_gain(val_losses)[-1:] >= [epochs]


# Settings that may change when a run is resumed.
FREE = frozenset(
    {
        *("epochs", "device", "store", "workers", "compile_mode", "allow_cpu"),
        *("checkpoint_every", "early_stop"),
    }
)
# Sizes that do not apply to a ``module:build`` model.
SIZES = ("hidden", "layers", "dropout", "pool")
# The files of a run's folder: what it resumes from, its settings, and its results.
CHECKPOINT, CONFIG, CHOICES = "checkpoint.pt", "config.toml", "choices.json"
REPORT, STEPS, PICTURE = "report.json", "steps.csv", "report.png"
PAGE = "report.html"  # only if requested


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

    batch_size: Annotated[BatchSize, TRAINING, Parameter(metavar="SIZE")] = 128
    epochs: Annotated[int, WHOLE, TRAINING] = 3
    lr: Annotated[float, RATE, TRAINING] = 1e-3
    schedule: Annotated[str, choice(*SCHEDULES), TRAINING] = "constant"
    clip_norm: Annotated[float | None, POSITIVE, TRAINING, Parameter(metavar="X")] = None
    accumulate: Annotated[int, WHOLE, TRAINING, Parameter(metavar="K")] = 1
    autocast: Annotated[str | None, choice("bfloat16"), TRAINING] = None
    early_stop: Annotated[int | None, WHOLE, TRAINING, Parameter(metavar="EPOCHS")] = None
    seed: Annotated[Seed, TRAINING] = 0
    compile_mode: Annotated[Mode, MACHINE, Parameter(show_choices=False)] = "auto"
    allow_cpu: Annotated[bool, MACHINE] = False
    device: Annotated[Device, MACHINE] = "auto"
    kernels: Annotated[str, choice("auto", "on", "off"), MACHINE] = "auto"
    store: Annotated[str, choice("auto", "host", "device"), MACHINE] = "auto"
    workers: Annotated[int | str, value(auto_or(whole(0, 256)), metavar="N"), MACHINE] = 0
    checkpoint_every: Annotated[int, WHOLE, MACHINE, Parameter(metavar="STEPS")] = 100

    def __post_init__(self) -> None:
        if not isinstance(self.target, str | None):  # a list, from the command line or TOML
            several = tuple(self.target)
            object.__setattr__(self, "target", several[0] if len(several) == 1 else several or None)
        options = get_type_hints(type(self), include_extras=True)
        for name in (field.name for field in fields(self)):
            setting = getattr(self, name)
            for parameter in getattr(options[name], "__metadata__", ()):
                if setting is not None and parameter.n_tokens == 1 and parameter.converter:
                    try:
                        parameter.converter(None, [Token(value=str(setting))])
                    except ValueError as error:
                        _, _, remedy = str(error).partition(": ")
                        raise ValueError(f"{name}={setting!r}: {remedy}") from None
        if self.kernels == "off" and self.compile_mode == "fused":
            raise ValueError(
                "compile_mode='fused' is made of the fused kernels, and kernels='off' leaves them "
                "out: give one of the two"
            )

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
    """A setting as TOML: as in JSON, except for one character."""
    return json.dumps(setting, ensure_ascii=False).replace("\x7f", "\\u007f")


def require_free(folder: Path) -> None:
    """Checks that a new run can start in the folder.

    Raises:
        FileExistsError: the folder already holds a run.
    """
    if (folder / CHECKPOINT).exists():
        raise FileExistsError(
            f"{folder} holds a run already: continue it with --resume, replace it with "
            "--overwrite, or choose another --out"
        )


def require_run(folder: Path, *, trained: bool = False) -> None:
    """Checks that the folder has a run to resume, or a ``trained`` model.

    Raises:
        FileNotFoundError: there is none.
    """
    if not (folder / CHECKPOINT).exists():
        remedy = ", so there is no run to resume: leave --resume out to begin one"
        if trained:
            remedy = (
                f": train a model there first, with staticgraph train --data SPEC --out {folder}"
            )
        raise FileNotFoundError(f"{folder} has no {CHECKPOINT}{remedy}")


def named_in(folder: Path, setting: str = "model") -> str | None:
    """The name of a run's model, or of its loss, from its settings, for messages; None if they name
    none or cannot be read."""
    try:
        name = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8")).get(setting)
    except (OSError, ValueError):  # only the checkpoint is needed to resume a run
        return None
    return name if isinstance(name, str) else None
