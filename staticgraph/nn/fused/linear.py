"""A linear layer by oneDNN where that is faster: float32 on a CPU, outside a compiled step."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.linear import available, linear
from staticgraph.nn.fused.layer import Fused

# Multiplications below which the stock layer's smaller overhead wins; see docs/kernels.md.
SMALL = 1 << 20


class FusedLinear(Fused, torch.nn.Linear):
    """Takes the place of ``torch.nn.Linear``, with the same state."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.use(self._obstacle(input)):
            return super().forward(input)
        return linear(input, self.weight, self.bias)

    def with_relu(self, input: Tensor) -> Tensor | None:
        """ReLU of the layer in one operator; None where stock code or hooks must run."""
        hooked = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks
        if hooked or not self.use(self._obstacle(input)):
            return None
        return linear(input, self.weight, self.bias, relu=True)

    def _obstacle(self, input: Tensor) -> str | None:
        if self.batch is None:
            return "no batch is bound: it ran outside the runner"
        if input.device.type != "cpu" or torch.compiler.is_compiling():
            return "only a CPU in eager mode gains"
        if input.dtype != torch.float32 or input.dim() != 2 or torch.is_autocast_enabled("cpu"):
            return "only float32 matrices have a fused form"
        if input.numel() * self.out_features < SMALL:
            return "too small to gain"
        if not available():
            return "this torch has no mkldnn._linear_pointwise"
        return None


class FusedSequential(Fused, torch.nn.Sequential):
    """Takes the place of ``torch.nn.Sequential``: a linear layer and the ReLU after it are one."""

    def forward(self, input: Tensor) -> Tensor:
        modules, at = list(self), 0
        while at < len(modules):
            module, after = modules[at], modules[at + 1 : at + 2]
            joined = None
            if isinstance(module, FusedLinear) and after and _plain_relu(after[0]):
                joined = module.with_relu(input)
            input = module(input) if joined is None else joined
            at += 1 if joined is None else 2
        return input


def _plain_relu(module: torch.nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module) is torch.nn.ReLU and not hooked
