"""What the cases of the operators give on a device, and how far that is from what the CPU gives.

Devices drop other values from the same seed: where values are dropped, the CPU's result is the
reference's with what the device says that it keeps.

A result on a device may be twice as far from the CPU's in a wide dtype as the CPU's own in the same
dtype is, or as a few roundings of it and a thousand of float32's are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from staticgraph.kernels.register import NAMESPACE
from support.kernel_cases import CASES, DROPPED, FEW, NO_FLOAT64, Sizes, operands, where


def results(
    name: str,
    dtype: torch.dtype,
    device: str,
    sizes: Sizes | None = None,
    given: torch.dtype | None = None,
    kept: Tensor | None = None,
) -> list[Tensor]:
    """Results and then gradients, on the CPU; operands are rounded to ``given`` first. With what is
    ``kept`` the reference's."""
    sizes = sizes or (FEW if name == "graph_attention dropout" else Sizes())
    values, graphs = operands(sizes, given or dtype, device), where(sizes, device)
    values = {name: v.detach().to(dtype).requires_grad_() for name, v in values.items()}
    if kept is not None:
        outs = DROPPED[name].reference(values, graphs, kept).to(dtype)
    else:
        outs = (CASES.get(name) or DROPPED[name].run)(values, graphs)
    outs = outs if isinstance(outs, list) else [outs]
    sloped = [out for out in outs if out.requires_grad]
    generator = torch.Generator().manual_seed(2)
    grads = [(torch.randint(-16, 17, out.shape, generator=generator) / 8).to(out) for out in sloped]
    if sloped:
        torch.autograd.backward(sloped, grads)
    slopes = [v.grad for v in values.values() if v.grad is not None]
    return [value.detach().cpu() for value in (*outs, *slopes)]


def kept_on(name: str, device: str, sizes: Sizes | None = None) -> Tensor | None:
    """What a case keeps there, on the CPU; None where it drops nothing."""
    if name not in DROPPED:
        return None
    sizes = sizes or (FEW if name == "graph_attention dropout" else Sizes())
    values, graphs = operands(sizes, torch.float32, device), where(sizes, device)
    return DROPPED[name].kept(values, graphs).cpu()


def on_cpu(
    name: str, dtype: torch.dtype, kept: Tensor | None = None, sizes: Sizes | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """What the CPU gives in a wide dtype from the same operands, and in this one; the wide result
    twice where this CPU has no product of it."""
    wide = torch.float32 if name in NO_FLOAT64 else torch.float64
    exact = results(name, wide, "cpu", sizes, dtype, kept)
    if name in NO_FLOAT64 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return exact, exact
    return exact, results(name, dtype, "cpu", sizes, None, kept)


def far(
    found: list[Tensor], exact: list[Tensor], usual: list[Tensor], dtype: torch.dtype
) -> list[str]:
    """What of the results is further from the exact ones than the bound; nothing if all is well."""
    if not len(found) == len(exact) == len(usual):
        return [f"{len(found)} results and gradients, the CPU has {len(exact)} and {len(usual)}"]
    wrong = []
    for place, (one, right, near) in enumerate(zip(found, exact, usual, strict=True)):
        if one.shape != right.shape:
            wrong.append(f"{place}: shape {tuple(one.shape)} instead of {tuple(right.shape)}")
        elif not right.is_floating_point():
            if not torch.equal(one, right):
                wrong.append(f"{place}: {int((one != right).sum())} numbers differ")
        elif right.numel():
            scale = float(right.abs().max())
            least = (torch.finfo(dtype).eps + 1000 * torch.finfo(torch.float32).eps) * scale
            off = float((one.double() - right.double()).abs().max())
            bound = 2 * max(least, float((near.double() - right.double()).abs().max()))
            if not off <= bound:
                wrong.append(f"{place}: off by {off:.2e}, the bound is {bound:.2e}")
    return wrong


@contextmanager
def operators_called() -> Iterator[set[str]]:
    """Which of this library's operators are called meanwhile."""
    called: set[str] = set()

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            namespace, _, name = func.name().partition("::")
            if namespace == NAMESPACE:
                called.add(name.partition(".")[0])
            return func(*args, **(kwargs or {}))

    with Watching():
        yield called
