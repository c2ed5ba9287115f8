"""All patches, grouped by the library or component they patch. Each names its symbol and reason."""

from __future__ import annotations

import ctypes

from staticgraph.dryrun.stubs import attention, cuda, dynamo, fakes, inductor, library, triton
from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

GROUPS = (cuda, fakes, dynamo, triton, attention, inductor, library)


def install(guard: ctypes.CDLL, target: TargetDevice, leave_out: str | None = None) -> PatchPoints:
    """Patches this process permanently.

    Args:
        guard: as returned by :func:`staticgraph.dryrun.guard.load`.
        target: the device to emulate.
        leave_out: a symbol not to patch, used to test the self-test.

    Raises:
        DryRunBroken: torch no longer has a symbol; the message names it.
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
