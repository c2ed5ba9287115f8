"""Everything that is patched, by whose it is. Each point names its symbol and says why."""

from __future__ import annotations

import ctypes

from staticgraph.dryrun.stubs import attention, cuda, dynamo, fakes, inductor, library, triton
from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

GROUPS = (cuda, fakes, dynamo, triton, attention, inductor, library)


def install(guard: ctypes.CDLL, target: TargetDevice, leave_out: str | None = None) -> PatchPoints:
    """Patches this process, for good.

    Args:
        guard: as :func:`staticgraph.dryrun.guard.load` gives it.
        target: the device to believe in.
        leave_out: a symbol not to patch; the self-test is tested with it.

    Raises:
        DryRunBroken: torch has no such symbol any more; the message names it.
    """
    points = PatchPoints(leave_out)
    with points.of("guard"):
        points.put(
            "torch._C:_ensureCUDADeviceGuardSet", lambda: None, "would put torch's own guard back"
        )
        guard.install_fake_cuda_guard()
    for group in GROUPS:
        with points.of(group.__name__.rpartition(".")[2]):
            group.install(points, target)
    return points
