"""What is trained, and how it is called: the object shared by runner, probe, budget and checks.

A model by itself does not define a step. With its loss, its optimizer, the way it is called and
what is done to inputs and gradients, it does; so these travel together, and are checked once, here.
How a step runs (its mode, recording, budget) is not part of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch.optim.swa_utils import AveragedModel

from staticgraph.schema import Level
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.loss.finite_losses import EVERY
from staticgraph.steps.loss.mean_loss import Loss
from staticgraph.steps.state.recordable_optimizer import parameters_of
from staticgraph.text.numeric_options import real_option, whole_option

# The dtypes that torch.autocast computes in.
AUTOCAST = (torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    """Returns ``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def check_autocast(dtype: object) -> None:
    """Refuses a dtype that torch would ignore with a warning at every step, or fail on later.

    Raises:
        TypeError: it is not a dtype.
        ValueError: autocast does not compute in this dtype.
    """
    if dtype is None or dtype in AUTOCAST:
        return
    remedy = "give torch.bfloat16 or torch.float16, or leave autocast= out"
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"autocast={dtype!r} is a {type(dtype).__name__}, not a dtype: {remedy}")
    raise ValueError(
        f"autocast={dtype}, which is not a lower precision of torch.autocast: {remedy}; "
        "for a whole model in another precision model.to(dtype)"
    )


class StepOptions(TypedDict, total=False):
    """The options of a step besides loss, optimizer, forward and autocast; see :class:`Subject`."""

    clip_norm: float | None
    differentiable: Sequence[str]
    rows: Mapping[Any, Level | None] | None
    accumulate: int
    sanitize: bool
    check_padding: bool
    check_finite: int


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A model and how it is trained.

    Attributes:
        model: any PyG model, on the device where it will run.
        loss: ``loss(out, batch)``, one value per graph (or node, or edge); the mean is taken over
            the real rows. ``(values, weights)`` for a weighted mean, ``(values, weights or None,
            added)`` for a scalar that is added once, or the mean of other rows:
            :class:`staticgraph.steps.loss.mean_loss.LossTerms`.
        optimizer: over the model's parameters.
        forward: ``forward(model, batch)``, needed where the names of the model's own parameters do
            not say what to pass.
        autocast: ``torch.bfloat16`` or ``torch.float16``, to run the forward and the loss in.
        clip_norm: the largest norm of all gradients together; larger ones are scaled down to it.
        differentiable: float fields that the model takes derivatives by, such as ``("pos",)`` for
            forces; ``data.pos.requires_grad_()`` in the model then compiles.
        rows: what the rows of an output are, by its key or position, where that cannot be known
            from the model: ``{"embedding": "node", 1: None}``; None for a tensor without rows.
        accumulate: the number of batches after which ``step`` updates, with the mean of their
            gradients, as ``(loss / accumulate).backward()`` does in a hand-written loop; batches
            left over at the end of an epoch carry into the next. Recordings then end at the
            gradients, whatever their scope.
        sanitize: set the padding rows of every input to zero inside the step; only a batch that was
            not filled by this library can have anything else there.
        check_padding: compare a batch, at first and again in later epochs, with other values in its
            padding, and without padding in plain PyG; see
            :mod:`staticgraph.checking.padding_check`. Also compare the first step of every bucket
            with eager.
        check_finite: after how many training steps to check that all losses were finite; on the CPU
            each loss is read. 0 leaves them unchecked.

    Raises:
        TypeError: the model is not a module, the loss is a loss module of torch, the model is an
            averaged one, there are several optimizers, the optimizer needs a closure or a scaler,
            or ``autocast`` is not a dtype.
        ValueError: ``check_finite`` is negative, ``accumulate`` is below 1, or ``autocast`` is a
            dtype that autocast does not compute in.
    """

    model: torch.nn.Module
    loss: Loss | None = None
    optimizer: torch.optim.Optimizer | None = None
    forward: Forward | None = None
    autocast: torch.dtype | None = None
    clip_norm: float | None = None
    differentiable: Sequence[str] = ()
    rows: Mapping[Any, Level | None] | None = None
    accumulate: int = 1
    sanitize: bool = False
    check_padding: bool = True
    check_finite: int = EVERY

    def __post_init__(self) -> None:
        _check_given(self.model, self.loss, self.optimizer)
        for call, function in (("loss", self.loss), ("forward", self.forward)):
            if function is not None and not callable(function):
                raise TypeError(
                    f"{call}={function!r} is not a function: give {call}=lambda ..., batch: ..."
                )
        if self.rows is not None and not isinstance(self.rows, Mapping):
            raise TypeError(
                f"rows={self.rows!r}: give a dict of what the rows of each output are, by its key "
                "or position, such as {'embedding': 'node', 1: None}"
            )
        if isinstance(self.differentiable, str):
            raise TypeError(
                f"differentiable={self.differentiable!r}: give names of fields, such as ('pos',)"
            )
        object.__setattr__(self, "differentiable", tuple(self.differentiable))
        object.__setattr__(self, "accumulate", whole_option("accumulate", self.accumulate, 1))
        if self.clip_norm is not None:
            clip_norm = real_option("clip_norm", self.clip_norm, 0, infinite=True)
            object.__setattr__(self, "clip_norm", clip_norm)
        check_autocast(self.autocast)
        object.__setattr__(self, "check_finite", whole_option("check_finite", self.check_finite, 0))

    @classmethod
    def of(
        cls,
        model: torch.nn.Module | Subject,
        *,
        loss: Loss | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        forward: Forward | None = None,
        autocast: torch.dtype | None = None,
        **options: Unpack[StepOptions],
    ) -> Subject:
        """Returns a given subject as it is, or one made from a model and options.

        Raises:
            TypeError: an option was given together with a subject.
        """
        if not isinstance(model, Subject):
            return cls(model, loss, optimizer, forward, autocast, **options)
        options_of_step = {
            "loss": loss,
            "optimizer": optimizer,
            "forward": forward,
            "autocast": autocast,
        }
        twice = [name for name, value in (options_of_step | options).items() if value is not None]
        if twice:
            raise TypeError(
                f"{', '.join(f'{name}=' for name in twice)} next to a Subject, which says it: give "
                f"Subject(model, {', '.join(f'{name}=...' for name in twice)}), or the model itself"
            )
        return model

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        return device_of(self.model)

    def parameters(self) -> list[torch.Tensor]:
        """Returns the current parameters of the model, and any others of the optimizer, each once.

        They are read again at every call, since either may gain parameters during training.
        """
        return list(dict.fromkeys([*self.model.parameters(), *parameters_of(self.optimizer)]))

    @property
    def functions(self) -> tuple[object, ...]:
        """The loss and the forward, if given: what they hold is not part of the model."""
        return tuple(f for f in (self.loss, self.forward) if f is not None)

    @property
    def pointers(self) -> bool:
        """Whether compiled steps are rewritten to kernels, so that a batch carries row pointers."""
        contexts = (vars(module).get("_staticgraph") for module in self.model.modules())
        return any(getattr(context, "kernels", False) for context in contexts)

    @property
    def trains(self) -> bool:
        """Whether it can take a training step."""
        return self.loss is not None and self.optimizer is not None

    @property
    def precision(self) -> str | None:
        """The name of the autocast dtype."""
        return None if self.autocast is None else name_of(self.autocast)


def device_of(model: torch.nn.Module) -> torch.device:
    """Returns the device of a model's first parameter; the CPU if it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def warn_of_another_models_optimizer(subject: Subject) -> None:
    """Warns if training would leave the model unchanged.

    This happens when the optimizer was made from the parameters of another model, for example by a
    notebook cell that ran before the model was built again.
    """
    trained = {id(p) for p in subject.model.parameters() if p.requires_grad}
    if trained and trained.isdisjoint(map(id, parameters_of(subject.optimizer))):
        warnings.warn(
            f"the optimizer has none of the parameters of {type(subject.model).__name__}, so "
            "training would leave it as it is: make the optimizer of model.parameters() after the "
            "model",
            stacklevel=3,
        )


def _check_given(model: object, loss: object, optimizer: object) -> None:
    """Refuses up front what would fail in the first step with a less helpful message."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, AveragedModel):
        raise TypeError(
            "AveragedModel holds a copy of a model and says nothing of how it is called: train "
            "the model itself and call averaged.update_parameters(model) after each "
            "runner.step(batch); to evaluate, give a second runner averaged.module"
        )
    if type(loss).__module__ == torch.nn.modules.loss.__name__:
        raise TypeError(
            f"loss={type(loss).__name__}() takes a target, and the runner's takes the batch: pass "
            "loss=lambda out, batch: F.mse_loss(out, batch.y, reduction='none'), or "
            f"{type(loss).__name__}(reduction='none')(out, batch.y)"
        )
    if isinstance(optimizer, torch.amp.GradScaler):  # pyright: ignore[reportPrivateImportUsage]
        raise TypeError(
            "GradScaler reads on the host, every step, whether a gradient overflowed, which a step "
            "of fixed work cannot: give the optimizer itself and autocast=torch.bfloat16, which "
            "needs no scaler; or runner(batch) and your own loop, docs/loops.md"
        )
    if isinstance(optimizer, list | tuple | dict):
        raise TypeError(
            f"optimizer= is a {type(optimizer).__name__} of {len(optimizer)}, and a step has one: "
            "for different settings per part of the model, give one optimizer parameter groups "
            "(torch.optim.Adam([{'params': model.head.parameters(), 'lr': 1e-4}, ...])); for "
            "optimizers that take turns, or are of different kinds, call runner(batch) in your own "
            "loop, docs/loops.md"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "LBFGS calls the model several times a step, through a closure, which a step of fixed "
            "work cannot: use another optimizer, or runner(batch) and your own loop"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise TypeError(
            "SparseAdam moves every row of a table that a batch names, with a gradient of zero "
            "too, and padding names row 0: use Adam with Embedding(sparse=False), or, with "
            "sparse=True, SGD or Adagrad, which leave such rows as they are"
        )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer= is a {type(optimizer).__name__}, not a torch.optim.Optimizer, such as "
            "torch.optim.Adam(model.parameters(), lr=1e-3)"
        )
