"""Bitwise comparison of tensors."""

from __future__ import annotations

from torch import Tensor


def equal(found: Tensor, expected: Tensor, name: str) -> None:
    """Asserts that two tensors have the same dtype, shape and bits."""
    assert found.dtype == expected.dtype, f"{name}: {found.dtype} for {expected.dtype}"
    assert found.shape == expected.shape, f"{name}: {found.shape} for {expected.shape}"
    one, two = (t.contiguous().view(-1).numpy().tobytes() for t in (found, expected))
    assert one == two, f"{name}: {found} for {expected}"
