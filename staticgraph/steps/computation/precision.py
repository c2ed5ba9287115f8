"""The precision a step computes in: its subject's autocast, or one that is entered around it.

In eager an autocast around a call has its usual effect. A compiled or recorded step keeps the
autocast that it was made in, so that is part of its key, and a call inside another autocast reports
it instead of computing in the wrong precision.

Autocast keeps its casts of weights until its outermost block ends. Inside a block around a whole
loop, they would stay those of the first step, and a recording made there would read them, too. So
they are dropped after every update, and before and after everything that is recorded.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# The dtypes that torch.autocast computes in.
AUTOCAST = (torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    """Returns ``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


def entered(device: str) -> str | None:
    """Returns the dtype of the autocast currently entered for a device type; None for none."""
    if not torch.is_autocast_enabled(device):
        return None
    return name_of(torch.get_autocast_dtype(device))


class Precision:
    """The precision of one subject's steps.

    Args:
        autocast: the subject's own; None leaves whatever is entered around a call.
        device: the device of its model.
    """

    def __init__(self, autocast: torch.dtype | None, device: torch.device) -> None:
        self._autocast, self._device = autocast, device.type

    def __call__(self) -> AbstractContextManager[Any]:
        """A ``with`` block around a forward and its loss."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._autocast)

    def alone(self) -> AbstractContextManager[Any]:
        """A ``with`` block around a compiled step, without the caller's autocast.

        That autocast does not apply if the subject has its own, which is entered inside the step.
        """
        if self._autocast is None or not torch.is_autocast_enabled(self._device):
            return nullcontext()
        return torch.autocast(self._device, enabled=False)

    @property
    def around(self) -> str | None:
        """The dtype of the autocast around the current call; None if the subject has its own."""
        return None if self._autocast is not None else entered(self._device)


def check_autocast(dtype: object) -> None:
    """Refuses a dtype that torch would ignore with a warning at every step, or fail on later.

    Raises:
        TypeError: it is not a dtype.
        ValueError: autocast does not compute in this dtype.
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
