"""Event kinds of torch's profiler."""

from __future__ import annotations

from torch._C._profiler import _EventType

ALLOCATION = _EventType.Allocation
