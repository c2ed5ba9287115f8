"""The device interface of Dynamo and Inductor."""

from __future__ import annotations

import torch

from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

INTERFACE = "torch._dynamo.device_interface:CudaInterface"
AS_TORCH_CUDA = (
    "current_device",
    "set_device",
    "device_count",
    "current_stream",
    "synchronize",
    "get_device_properties",
    "memory_allocated",
    "is_bf16_supported",
)


def install(points: PatchPoints, target: TargetDevice) -> None:
    """Patches ``CudaInterface``, which bound torch.cuda's original functions when imported."""
    for name in AS_TORCH_CUDA:
        value = staticmethod(getattr(torch.cuda, name))
        points.put(f"{INTERFACE}.{name}", value, "bound to torch.cuda's own when imported")
    for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
        points.put(f"{INTERFACE}.{name}", staticmethod(lambda device: 0), "asks the driver")
    points.put(f"{INTERFACE}.is_available", staticmethod(lambda: True), "asks the driver")
