"""The runner for sampled batches: a model over padded hops, compiled once per rung and phase.

It is to sampled batches what :class:`staticgraph.StaticGraphRunner` is to batches of whole graphs.
A rung of the ladder is a fixed shape, so each rung has one compiled function for training and one
for evaluation, and in ``cuda-graph`` mode one recorded training step; a batch that fits no rung
runs eagerly, and the ladder counts it. On CUDA, a batch is copied on a separate stream, in parallel
with the previous step, and its slot is not refilled before the copy is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from staticgraph.outofcore.sampling.hops import HopBatch
from staticgraph.outofcore.training.hop_recording import RecordedHops
from staticgraph.recording.recorder import CudaGraphRecorder, Recorder
from staticgraph.steps.compilation.compiled_function import CompiledFunction
from staticgraph.steps.compilation.modes import Mode, resolve

Compiler = Callable[[Callable[..., Tensor], str], Callable[..., Tensor]]


class HopRunner:
    """Runs a model over padded hops, compiled once per rung and phase.

    Args:
        model: takes ``x [R, F]``, the hops, and any further inputs of a step.
        mode: as for :class:`staticgraph.StaticGraphRunner`; ``cuda-graph`` records training steps,
            and compiles evaluation without recording it.
        compiler: compiles a function, given it and a name, in place of the mode's compiler.
        recorder: the recorder of ``cuda-graph``; None for CUDA graphs.

    Attributes:
        compiled: the compiled functions, by (rung, training).
        recorded: the recorded steps, by rung; None in other modes.

    Raises:
        ValueError: if the mode does not exist, or not on this device.
    """

    def __init__(
        self,
        model: nn.Module,
        mode: str = "auto",
        compiler: Compiler | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.model = model
        self.device: torch.device = next(model.parameters()).device
        self.mode: Mode = resolve(mode, self.device.type, allow_cpu=recorder is not None)
        if self.mode.own and recorder is None:
            recorder = CudaGraphRecorder(self.device)
        self.recorded: RecordedHops | None = (
            RecordedHops(model, recorder) if self.mode.own and recorder else None
        )
        compiles = self.mode.compiled if recorder is None else recorder.compiles
        self._compiler = compiler or (
            (lambda function, name: CompiledFunction(function, self.mode, name))
            if compiles
            else None
        )
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.compiled: dict[tuple[int, bool], Callable[..., Tensor]] = {}

    def __call__(self, hops: HopBatch) -> Tensor:
        """Returns the model's output ``[N_0, out]`` for a batch with features.

        Raises:
            ValueError: if the batch has no features.
        """
        if hops.x is None:
            raise ValueError("the batch has no features: pass features= to outofcore.partition")
        return self.run(hops, self.on_device(hops, hops.x.float()))

    def step(
        self,
        hops: HopBatch,
        inputs: Sequence[Tensor],
        finish: Callable[..., Tensor],
        targets: Sequence[Tensor] = (),
        *,
        wants_x: bool = False,
    ) -> tuple[Tensor, ...]:
        """Runs forward, loss and backward; the gradients replace those of the previous step.

        Args:
            hops: the batch.
            inputs: the result of :meth:`on_device`.
            finish: computes the loss from the model's output and ``targets``.
            targets: tensors on the device.
            wants_x: also return the gradient of ``x``.

        Returns:
            The loss, the output and, if requested, the gradient of ``x``; valid until the next
            step.
        """
        count = len(inputs)

        def body(tensors: list[Tensor]) -> tuple[Tensor, ...]:
            """Runs forward, loss and backward over fixed tensors; this is what gets recorded."""
            for parameter in self.model.parameters():
                parameter.grad = None  # backward then writes gradients instead of accumulating
            x = tensors[0]
            if wants_x:
                x.grad = None
                x.requires_grad_()
            out = self.run(hops, tensors[:count])
            loss = finish(out, *tensors[count:])
            loss.backward()
            by_x = (x.grad,) if wants_x and x.grad is not None else ()
            return loss.detach(), out.detach(), *by_x

        tensors = [*inputs, *targets]
        if self.recorded is None or hops.rung is None:
            return body(tensors)
        return self.recorded(hops.rung, tensors, body)

    def close(self) -> None:
        """Releases the recordings."""
        if self.recorded is not None:
            self.recorded.close()

    def on_device(self, hops: HopBatch, x: Tensor, more: Sequence[Tensor] = ()) -> list[Tensor]:
        """Copies the inputs of :meth:`run` to the device: ``x``, degrees, ``more``, draws."""
        tensors = [x, hops.degree, hops.whole, *more, *hops.draws]
        if self._stream is None:
            return [tensor.to(self.device) for tensor in tensors]
        present = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            hops.copied = hops.copied or torch.cuda.Event()
            hops.copied.record()
        present.wait_stream(self._stream)
        for copy in copies:
            copy.record_stream(present)
        return copies

    def run(self, hops: HopBatch, inputs: Sequence[Tensor]) -> Tensor:
        """Returns the model's output for the result of :meth:`on_device`."""
        first = len(inputs) - hops.hops

        def forward(x: Tensor, degree: Tensor, whole: Tensor, *others: Tensor) -> Tensor:
            """Runs the model over the tensors of the hops, in the order of a recording's inputs."""
            more, draws = others[: first - 3], others[first - 3 :]
            return self.model(x, _Draws(degree, whole, draws), *more)

        if self._compiler is None or hops.rung is None:
            return forward(*inputs)
        key = (hops.rung, self.model.training)
        if key not in self.compiled:
            phase = "train" if self.model.training else "eval"
            self.compiled[key] = self._compiler(forward, f"rung {hops.rung} {phase}")
        return self.compiled[key](*inputs)


@dataclass(slots=True)
class _Draws:
    """The attributes of a batch that layers read, over the tensors of a compiled function."""

    degree: Tensor
    whole: Tensor
    draws: tuple[Tensor, ...]
