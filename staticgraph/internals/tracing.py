"""Dynamo and what it notes: its switches, its counters, its errors, what it traces now."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._guards import TracingContext

__all__ = [
    "ConstantSource",
    "TorchDynamoException",
    "TracingContext",
    "counters",
    "forget_compiled",
    "switched",
]


def forget_compiled() -> None:
    """Forgets everything that was traced in this process."""
    torch._dynamo.reset()


def switched(**wanted: bool) -> AbstractContextManager[None]:
    """Inside, Dynamo's options are as wanted; those that this torch has not are left out."""
    config = torch._dynamo.config
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})
