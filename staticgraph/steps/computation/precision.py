"""In which precision a step computes: its subject's autocast, or one that is entered around it.

In eager an autocast around a call does what it does around any model. A step that is compiled or
recorded keeps the one that it was made in, so that one is part of its key, and a call within
another says so instead of computing in a precision that nobody asked for there.

Autocast keeps its casts of weights until its outermost block ends. Inside of a block around a whole
loop they would be those of the first step for ever; and a recording made there would read them,
too. So they are dropped after every update, and before and after all that is recorded.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# What torch.autocast computes in.
AUTOCAST = (torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def entered(device: str) -> str | None:
    """The dtype of the autocast that is entered now for a type of device; None for none."""
    if not torch.is_autocast_enabled(device):
        return None
    return name_of(torch.get_autocast_dtype(device))


class Precision:
    """Of one subject's steps.

    Args:
        autocast: the subject's own; None leaves what is entered around a call.
        device: where its model is.
    """

    def __init__(self, autocast: torch.dtype | None, device: torch.device) -> None:
        self._autocast, self._device = autocast, device.type

    def __call__(self) -> AbstractContextManager[Any]:
        """As a ``with`` block around a forward and its loss."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._autocast)

    def alone(self) -> AbstractContextManager[Any]:
        """As a ``with`` block around a compiled step: an autocast that does not count, since the
        subject has its own, is not entered inside."""
        if self._autocast is None or not torch.is_autocast_enabled(self._device):
            return nullcontext()
        return torch.autocast(self._device, enabled=False)

    @property
    def around(self) -> str | None:
        """The dtype of an autocast that is entered around the present call and counts, since the
        subject names none of its own."""
        return None if self._autocast is not None else entered(self._device)


def check_autocast(dtype: object) -> None:
    """Refuses what torch would ignore with a warning at every step, or fail on later.

    Raises:
        TypeError: it is no dtype.
        ValueError: a dtype that autocast does not compute in.
    """
    if dtype is None or dtype in AUTOCAST:
        return
    wanted = "give torch.bfloat16 or torch.float16, or leave autocast= out"
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"autocast={dtype!r} is a {type(dtype).__name__}, not a dtype: {wanted}")
    raise ValueError(
        f"autocast={dtype}, which is not a lower precision of torch.autocast: {wanted}; "
        "for a whole model in another precision model.to(dtype)"
    )
