"""The settings of a training run, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from staticgraph.datasets.task_names import AUTO, check_task
from staticgraph.training.schedule import SCHEDULES

# Settings that may change when a run is resumed.
FREE = frozenset(
    {
        *("epochs", "device", "store", "workers", "compile_mode", "allow_cpu"),
        *("checkpoint_every", "early_stop"),
    }
)
KERNELS = ("auto", "on", "off")
STORES = ("auto", "host", "device")
# float16 would need a gradient scaler, whose step cannot be recorded.
AUTOCAST = ("bfloat16",)
COUNTS = (
    "hidden",
    "layers",
    "batch_size",
    "epochs",
    "checkpoint_every",
    "accumulate",
    "early_stop",
)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """The settings of a run.

    Attributes:
        data: a specification that :func:`staticgraph.datasets.open` understands.
        target: column or columns of a CSV to predict; all numeric ones if None.
        task: the kind of target, one of :data:`staticgraph.datasets.task_names.TASKS`.
        loss: ``module:name`` of ``loss(out, batch)``, one value per row; None for the task's own.
        model: one of :data:`staticgraph.models.NAMES`, or ``module:build`` of a function that
            builds the model.
        hidden, layers, dropout, pool: columns of every layer, number of layers, dropout between
            them, and ``mean`` or ``add`` pooling; only for models by name.
        batch_size: graphs in every batch but the last.
        epochs: passes over the training graphs, including those before a resume.
        lr: learning rate of Adam.
        schedule: its schedule, a key of :data:`staticgraph.training.schedule.SCHEDULES`.
        clip_norm: the largest norm of all gradients together; None for no clipping.
        accumulate: batches per optimizer update.
        autocast: autocast dtype of forward and loss; None for no autocast.
        early_stop: epochs without a lower validation loss after which the run ends; None for never.
        seed: seed of the split, the model and the order of graphs.
        kernels: whether steps are rewritten to this library's kernels: ``on`` in every compiled
            mode, ``off`` in none, ``auto`` only where ``compile_mode`` is or chooses ``fused``.
        compile_mode, allow_cpu: see :class:`StaticGraphRunner`.
        device: ``cpu``, ``cuda``, or ``auto`` for CUDA if available.
        store: ``host``; ``device``, where the graphs are copied once and only ids are transferred;
            or ``auto``: ``device`` on CUDA if the graphs take at most a part of its memory. Does
            not change results.
        workers: threads that fill batches ahead, if the store is on the host; ``auto`` times the
            first steps to choose their number. Does not change results.
        checkpoint_every: steps between checkpoints within an epoch; each epoch also ends with one.

    Raises:
        ValueError: a setting is out of range; the message names it.
    """

    data: str
    target: str | tuple[str, ...] | None = None
    task: str = AUTO
    loss: str | None = None
    model: str = "gine"
    hidden: int = 64
    layers: int = 4
    dropout: float = 0.0
    pool: str = "mean"
    batch_size: int = 128
    epochs: int = 3
    lr: float = 1e-3
    schedule: str = "constant"
    clip_norm: float | None = None
    accumulate: int = 1
    autocast: str | None = None
    early_stop: int | None = None
    seed: int = 0
    kernels: str = "auto"
    compile_mode: str = "auto"
    allow_cpu: bool = False
    device: str = "auto"
    store: str = "auto"
    workers: int | str = 0
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.target, str | None):  # a list, from the command line or TOML
            several = tuple(self.target)
            object.__setattr__(self, "target", several[0] if len(several) == 1 else several or None)
        for name in COUNTS:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        check_task(self.task)
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}; choose one of {', '.join(SCHEDULES)}")
        if self.autocast not in (None, *AUTOCAST):
            raise ValueError(f"autocast={self.autocast!r}; choose one of {', '.join(AUTOCAST)}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm={self.clip_norm} must be a number above 0")
        if self.kernels == "off" and self.compile_mode == "fused":
            raise ValueError(
                "compile_mode='fused' is made of the fused kernels, and kernels='off' leaves them "
                "out: give one of the two"
            )
        if self.kernels not in KERNELS:
            raise ValueError(f"kernels={self.kernels!r}; choose one of {', '.join(KERNELS)}")
        if self.store not in STORES:
            raise ValueError(f"store={self.store!r}; choose one of {', '.join(STORES)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr={self.lr} must be a number above 0")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout={self.dropout} is a share, 0 to 1")
        if isinstance(self.workers, str) and self.workers != "auto":
            raise ValueError(f"workers={self.workers!r}; give a number, or 'auto'")
        for name in ("seed", "workers"):
            if (value := getattr(self, name)) != "auto" and value < 0:
                raise ValueError(f"{name}={value} must not be negative")
