"""What recordings of one model have in common, whoever makes them: a runner's steps, hops' steps.

A recording is warmed up, and changes no parameter, gradient, optimizer state or random state. Its
replay writes gradients of its own, which are then the parameters'. It reads parameters where they
stood, so one that stands elsewhere now is an error and not a step with old values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.errors import NotStatic
from staticgraph.recording.recorder import Recorded, Recorder
from staticgraph.recording.replays import Replays
from staticgraph.steps.training_state import untouched

# torch's own recipe warms up three times: lazily made workspaces and states must exist by then.
WARM_RUNS = 3


class Made(NamedTuple):
    """A recording, the gradients that it writes, and where the parameters stood."""

    recorded: Recorded
    grads: list[Tensor | None]
    addresses: list[int]


class RecordedModel:
    """Records functions of a model, and replays them.

    Args:
        model: its parameters are watched.
        optimizer: whose state is put back after recording, too; None for none.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        self.replays = Replays()
        self._model, self._optimizer = model, optimizer

    def record(
        self,
        recorder: Recorder,
        body: Callable[[], Any],
        what: str,
        remedy: str,
        before: Callable[[], None] = lambda: None,
        between: Callable[[], None] = lambda: None,
    ) -> Made:
        """Warms up and records; everything the run touched is put back.

        Args:
            recorder: how.
            body: what is recorded.
            what: it is, for the message.
            remedy: what stands in the way as a rule, and what to do.
            before: run first, and undone with the rest.
            between: run after the warm-up and before the recording.

        Raises:
            NotStatic: it cannot be recorded.
        """
        try:
            with untouched(self._model, self._optimizer):
                before()
                recorder.warm(body, WARM_RUNS)
                between()
                recorded = recorder.record(body)
                grads = [parameter.grad for parameter in self._model.parameters()]
                return Made(recorded, grads, self._addresses())
        except NotStatic:
            raise
        except Exception as error:
            raise NotStatic(
                f"{what} cannot be recorded: {type(error).__name__}: {error}\n{remedy}"
            ) from error

    def check(self, made: Made, what: str, remedy: str) -> None:
        """Refuses to replay with parameters that stand elsewhere.

        Raises:
            NotStatic: one does.
        """
        if self._addresses() != made.addresses:
            raise NotStatic(
                f"{what}: a parameter stands at another address than when it was recorded (moved "
                f"with .to(), or exchanged); {remedy}"
            )

    def replay(self, made: Made, trains: bool = True) -> Any:
        """Runs a recording, and gives the parameters the gradients that it writes; another's are
        others. Its result is overwritten by the next."""
        self.replays.run(made.recorded)
        if trains:
            for parameter, grad in zip(self._model.parameters(), made.grads, strict=True):
                parameter.grad = grad
        return made.recorded.result

    def drop(self, all_made: list[Made]) -> None:
        """Takes from the parameters the gradients that belong to recordings."""
        owned = {id(grad) for made in all_made for grad in made.grads if grad is not None}
        for parameter in self._model.parameters():
            if id(parameter.grad) in owned:
                parameter.grad = None

    def _addresses(self) -> list[int]:
        return [parameter.data_ptr() for parameter in self._model.parameters()]
