"""Triton's driver: compiles for the target, and launches nothing.

This library's own kernels are launched by their ``gpu.py`` as on a device; the launches that arrive
here are compiled (once per signature) and noted. Inductor's go through :mod:`.inductor`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from staticgraph.dryrun import launches
from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import TargetDevice

WHY = "there is no driver"


def driver_for(target: TargetDevice) -> Any:
    """A driver with the device's numbers."""
    from triton.backends.compiler import GPUTarget

    major, minor = target.capability
    numbers = {
        "max_shared_mem": target.shared_bytes,
        "multiprocessor_count": target.multiprocessors,
        "warpSize": 32,
        "max_num_regs": 65536,
        "sm_clock_rate": target.clock_khz,
        "mem_clock_rate": target.memory_clock_khz,
        "mem_bus_width": target.bus_bits,
    }
    return SimpleNamespace(
        utils=SimpleNamespace(get_device_properties=lambda device: numbers),
        get_current_target=lambda: GPUTarget("cuda", 10 * major + minor, 32),
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        set_current_device=lambda device: None,
        is_active=lambda: True,
    )


class Pointer:
    """A tensor as Triton's compiler sees it: a dtype and an address.

    The address is the offset in its storage, so that a view has the right alignment.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype: torch.dtype = tensor.dtype
        self._address = int(tensor.storage_offset()) * tensor.element_size()

    def data_ptr(self) -> int:
        """The address, as in ``Tensor.data_ptr``."""
        return self._address

    @staticmethod
    def ptr_range() -> int:
        """The size of the memory at the address; 0, since it is unknown."""
        return 0


def install(points: PatchPoints, target: TargetDevice) -> None:
    """Activates the driver and patches Triton's launches so that they are noted."""
    from triton.runtime import driver

    driver.set_active(driver_for(target))
    run = points.real("triton.runtime.jit:JITFunction.run", WHY)

    def launch_noted(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        """Replaces a launch: compiles for the target where requested, and notes it."""
        bare = [Pointer(a) if isinstance(a, torch.Tensor) else a for a in args]
        named = {k: Pointer(a) if isinstance(a, torch.Tensor) else a for k, a in kwargs.items()}
        kernel = None
        if launches.WATCH.compiles:
            kernel = run(self, *bare, grid=grid, warmup=True, **named)
        if not warmup:
            launches.WATCH.own_kernel(self.fn, kernel, (args, kwargs))
        return kernel

    points.put("triton.runtime.jit:JITFunction.run", launch_noted, WHY)
