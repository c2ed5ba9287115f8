"""Results of the operators' cases on a device, and how far they are from those of the CPU.

Devices drop different values for the same seed: for dropout, the CPU's result is the reference with
the values that the device keeps.

The error of a result, against the CPU's in a wide dtype, may be at most twice that of the CPU's own
result in the same dtype, or twice one rounding of the dtype plus a thousand of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from staticgraph.kernels.register import NAMESPACE
from support.kernel_cases import CASES, DROPPED, FEW, MORE, Sizes, operands, where


def results(
    name: str,
    dtype: torch.dtype,
    device: str,
    sizes: Sizes | None = None,
    operand_dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
    layout: Callable[[Tensor], Tensor] = torch.clone,
) -> list[Tensor]:
    """Runs a case on a device; returns results, then gradients, on the CPU.

    Operands are rounded to ``operand_dtype`` first, and changed by ``layout``. With ``mask``, runs
    the reference instead.
    """
    sizes = sizes or (FEW if name == "graph_attention dropout" else Sizes())
    values, graphs = operands(sizes, operand_dtype or dtype, device), where(sizes, device)
    rounded = {name: v.detach().to(dtype) for name, v in values.items()}
    values = {name: layout(v).requires_grad_() for name, v in rounded.items()}
    if mask is not None:
        outs = DROPPED[name].reference(values, graphs, mask).to(dtype)
    else:
        outs = (CASES.get(name) or MORE.get(name) or DROPPED[name].run)(values, graphs)
    outs = outs if isinstance(outs, list) else [outs]
    sloped = [out for out in outs if out.requires_grad]
    generator = torch.Generator().manual_seed(2)
    grads = [torch.randint(-16, 17, out.shape, generator=generator) / 8 for out in outs]
    if sloped:
        grads = [g.to(out) for out, g in zip(outs, grads, strict=True) if out.requires_grad]
        torch.autograd.backward(sloped, grads)
    slopes = [v.grad for v in values.values() if v.grad is not None]
    return [value.detach().cpu() for value in (*outs, *slopes)]


def kept_on(name: str, device: str, sizes: Sizes | None = None) -> Tensor | None:
    """Returns what a case keeps on a device, as a CPU tensor; None if it drops nothing."""
    if name not in DROPPED:
        return None
    sizes = sizes or (FEW if name == "graph_attention dropout" else Sizes())
    values, graphs = operands(sizes, torch.float32, device), where(sizes, device)
    return DROPPED[name].draw_mask(values, graphs).cpu()


def on_cpu(
    name: str, dtype: torch.dtype, mask: Tensor | None = None, sizes: Sizes | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the CPU's results in float64 from the same operands, and those in this dtype."""
    exact = results(name, torch.float64, "cpu", sizes, dtype, mask)
    return exact, results(name, dtype, "cpu", sizes, None, mask)


def far(
    actual: list[Tensor],
    exact: list[Tensor],
    usual: list[Tensor],
    dtype: torch.dtype,
    magnitude: float = 0.0,
) -> list[str]:
    """Returns a line for each result beyond the bound; empty if all are within it.

    ``magnitude`` is that of the operands: sums of them that cancel are off by their rounding, not
    by that of the result.
    """
    if not len(actual) == len(exact) == len(usual):
        return [f"{len(actual)} results and gradients, the CPU has {len(exact)} and {len(usual)}"]
    wrong = []
    for place, (value, right, near) in enumerate(zip(actual, exact, usual, strict=True)):
        form, right_form = ((each.shape, each.dtype) for each in (value, near))
        if form != right_form:
            wrong.append(f"{place}: {form} instead of {right_form}")
        elif not right.is_floating_point():
            if not torch.equal(value, right):
                wrong.append(f"{place}: {int((value != right).sum())} numbers differ")
        elif right.numel():
            scale = max(magnitude, float(right.abs().max()))
            wide = torch.promote_types(dtype, torch.float32)
            least = (torch.finfo(dtype).eps + 1000 * torch.finfo(wide).eps) * scale
            off = float((value.double() - right.double()).abs().max())
            bound = 2 * max(least, float((near.double() - right.double()).abs().max()))
            if not off <= bound:
                wrong.append(f"{place}: off by {off:.2e}, the bound is {bound:.2e}")
    return wrong


def operator_calls(name: str, dtype: torch.dtype) -> dict[Any, tuple[Any, ...]]:
    """Returns this library's operators that a case calls, each with the arguments of one call."""
    calls: dict[Any, tuple[Any, ...]] = {}

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == NAMESPACE:
                calls[func] = tree_map_only(Tensor, torch.detach, args)
            return func(*args, **(kwargs or {}))

    with Watching():
        results(name, dtype, "cpu", FEW)
    return calls
