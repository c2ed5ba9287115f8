"""A linear layer with its ReLU: through oneDNN on a CPU (float32, outside a compiled step); on CUDA
with the mask and the bias's gradient in one pass."""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from staticgraph.internals.hooks import unhooked
from staticgraph.kernels.linear import available, linear, linear_handed_on
from staticgraph.nn.context.choosing import any_size, device_type
from staticgraph.nn.context.leaf import leaves
from staticgraph.nn.fused.layer import Fused

# Multiplications below which the stock layer's smaller overhead wins; see docs/kernels.md.
SMALL = 1 << 20


class FusedLinear(Fused, torch.nn.Linear):
    """Takes the place of ``torch.nn.Linear``, with the same state."""

    def forward(self, input: Tensor) -> Tensor:
        """``[N, in]`` to ``[N, out]``."""
        if not self.use(self._obstacle(input)):
            return super().forward(input)
        return linear(input, self.weight, self.bias, dtype=autocast(input))

    def handing_on(self, input: Tensor, relu: bool) -> tuple[Tensor, Tensor] | None:
        """The layer, with ReLU if requested, and its input for later readers (see
        :func:`staticgraph.nn.fused.conv.handing_on`); None if stock code or hooks must run."""
        if not unhooked(self) or not self.use(self._obstacle(input)):
            return None
        return linear_handed_on(input, self.weight, self.bias, relu=relu, dtype=autocast(input))

    def with_relu(self, input: Tensor) -> Tensor | None:
        """The layer with ReLU in one operator; None if stock code or hooks must run."""
        if not unhooked(self) or not self.use(self._obstacle(input)):
            return None
        return linear(input, self.weight, self.bias, relu=True, dtype=autocast(input))

    def _obstacle(self, input: Tensor) -> str | None:
        if self.batch is None:
            return "no batch is bound: it ran outside the runner"
        return linear_obstacle(input, self.weight)


def linear_obstacle(input: Tensor, weight: Tensor) -> str | None:
    """Returns why a product runs as torch's own; None where this library's operator gains."""
    device = device_type(input)
    cast = torch.is_autocast_enabled(input.device.type)
    if input.dim() != 2 or (input.dtype != weight.dtype and not cast):
        return "only matrices of the weight's dtype have a fused form"
    if device != "cpu":
        double = torch.float64 in (input.dtype, weight.dtype)
        return "autocast leaves float64 as it is" if cast and double else None
    if cast:
        return "on a CPU only float32 has a fused form"
    if torch.compiler.is_compiling():
        return "a compiled step on a CPU does as well by itself"
    if input.dtype != torch.float32:
        return "on a CPU only float32 has a fused form"
    if input.numel() * weight.size(0) < SMALL and not any_size():
        return "too small to gain"
    return None if available() else "this torch has no mkldnn._linear_pointwise"


def autocast(x: Tensor) -> torch.dtype:
    """The dtype in which torch's own linear layer would run; autocast does not know this library's
    operator, which therefore casts its inputs itself."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class FusedSequential(Fused, torch.nn.Sequential):
    """Takes the place of ``torch.nn.Sequential``: fuses a linear layer and the ReLU after it."""

    def forward(self, input: Tensor) -> Tensor:
        """Runs the layers in turn; adjacent layers with a common operator are fused."""
        return self._rest(input, 0)

    def _rest(self, input: Tensor, at: int) -> Tensor:
        modules = list(self)
        while at < len(modules):
            module, joined = modules[at], None
            if isinstance(module, FusedLinear) and _relu_follows(modules, at):
                joined = module.with_relu(input)
            if joined is not None:
                input = joined
            elif self.batch is not None and not leaves() and input.dim() == 2 and _drops(module):
                input = self.dropped(input, at, module.p)
            else:
                input = module(input)
            at += 1 if joined is None else 2
        return input

    def handing_on(self, input: Tensor) -> tuple[Tensor, Tensor]:
        """The result, and the input for later readers (see
        :func:`staticgraph.nn.fused.conv.handing_on`)."""
        modules = list(self)
        if len(modules) > 0 and isinstance(modules[0], FusedLinear) and unhooked(self):
            relu = _relu_follows(modules, 0)
            found = modules[0].handing_on(input, relu)
            if found is not None:
                return self._rest(found[0], 1 + relu), found[1]
        return self(input), input


def _drops(module: torch.nn.Module) -> TypeGuard[torch.nn.Dropout]:
    if type(module) is not torch.nn.Dropout or not unhooked(module):
        return False
    return module.training and 0 < module.p < 1 and not module.inplace


def _relu_follows(modules: list[torch.nn.Module], at: int) -> bool:
    if at + 1 >= len(modules):
        return False
    return type(modules[at + 1]) is torch.nn.ReLU and unhooked(modules[at + 1])


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer without a module."""
    if linear_obstacle(x, weight) is None:
        return linear(x, weight, bias, dtype=autocast(x))
    return F.linear(x, weight, bias)


def product_handing_on(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """:func:`product`, and ``x`` for later readers (see
    :func:`staticgraph.nn.fused.conv.handing_on`)."""
    if linear_obstacle(x, weight) is None:
        return linear_handed_on(x, weight, bias, dtype=autocast(x))
    return F.linear(x, weight, bias), x
