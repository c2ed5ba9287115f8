"""Events of torch's profiler, by kind."""

from __future__ import annotations

from torch._C._profiler import _EventType

ALLOCATION = _EventType.Allocation
