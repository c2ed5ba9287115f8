"""Fake tensors on a CUDA device, in a torch without one."""

from __future__ import annotations

from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

MODULE = "torch._subclasses.fake_tensor"


def install(points: PatchPoints, target: TargetDevice) -> None:
    """Prevents fake tensors from creating a real one on the device."""
    points.put(f"{MODULE}:init_gpu_context", lambda *_: None, "would make a real tensor")
    points.put(
        f"{MODULE}:FakeTensorMode.avoid_device_init",
        property(lambda self: True),
        "torch.tensor(..., device='cuda') would be made on the device and faked then",
    )
