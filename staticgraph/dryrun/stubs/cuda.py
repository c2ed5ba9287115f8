"""``torch.cuda``: one device, always current, with the numbers of a data sheet and no hardware."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from staticgraph.dryrun.stubs.point import PatchPoints
from staticgraph.dryrun.targets import KIB, TargetDevice

RANDOM_STATE_BYTES = 16


def properties(target: TargetDevice) -> SimpleNamespace:
    """The result of ``torch.cuda.get_device_properties`` for a target."""
    return SimpleNamespace(
        name=target.device,
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=target.multiprocessors,
        total_memory=target.memory_bytes,
        L2_cache_size=target.l2_bytes,
        warp_size=32,
        gcnArchName="",
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=target.threads,
        max_threads_per_block=1024,
        shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=target.shared_bytes,
        shared_memory_per_multiprocessor=target.shared_multiprocessor_bytes,
        is_integrated=False,
        is_multi_gpu_board=False,
        uuid="none",
        clock_rate=target.clock_khz,
        memory_clock_rate=target.memory_clock_khz,
        memory_bus_width=target.bus_bits,
    )


def stream(device: Any = None) -> SimpleNamespace:
    """The only stream."""
    return SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0)


class Event:
    """An event of the only stream, which never waits."""

    def __init__(self, **options: Any) -> None:
        """Accepts the options of ``torch.cuda.Event`` and ignores them."""

    def record(self, stream: Any = None) -> None:
        """Does nothing, since nothing runs."""

    def wait(self, stream: Any = None) -> None:
        """Does nothing, since nothing runs."""

    def query(self) -> bool:
        """Returns True: all work is always done."""
        return True

    def synchronize(self) -> None:
        """Does nothing, since nothing runs."""


def install(points: PatchPoints, target: TargetDevice) -> None:
    """Patches ``torch.cuda``, its random state, and the bindings that a CPU build lacks."""
    described = properties(target)
    total = target.memory_bytes

    def random_state(device: Any = "cuda") -> torch.Tensor:
        """Zeros of the length of a device's random state, on the CPU."""
        return torch.zeros(RANDOM_STATE_BYTES, dtype=torch.uint8)

    for name, value, why in (
        ("is_available", lambda: True, "everything asks it first"),
        ("_is_compiled", lambda: True, "a CPU build says no to fake CUDA tensors"),
        ("is_initialized", lambda: False, "else fake tensors ask the driver for the index"),
        ("_lazy_init", lambda: None, "would look for a driver"),
        ("init", lambda: None, "would look for a driver"),
        ("device_count", lambda: 1, "asks the driver"),
        ("current_device", lambda: 0, "asks the driver"),
        ("set_device", lambda device: None, "asks the driver"),
        ("synchronize", lambda device=None: None, "waits for the device"),
        ("empty_cache", lambda: None, "there is no allocator"),
        ("get_device_properties", lambda device=None: described, "Inductor chooses by them"),
        ("get_device_capability", lambda device=None: target.capability, "as above"),
        ("get_device_name", lambda device=None: target.device, "as above"),
        ("get_rng_state", random_state, "warm-ups save and restore it"),
        ("set_rng_state", lambda state, device="cuda": None, "as above"),
        ("is_bf16_supported", lambda including_emulation=True: True, "asks the driver"),
        ("is_current_stream_capturing", lambda: False, "asks the driver"),
        ("current_stream", stream, "the wrapper asks for the stream to launch on"),
        ("Event", Event, "slots record when they are free"),
        ("_exchange_device", lambda device: 0, "device contexts"),
        ("_maybe_exchange_device", lambda device: 0, "as above; Dynamo wants two functions"),
        ("memory_allocated", lambda device=None: 0, "there is no allocator"),
        ("memory_reserved", lambda device=None: 0, "there is no allocator"),
        ("mem_get_info", lambda device=None: (total, total), "asks the driver"),
    ):
        points.put(f"torch.cuda:{name}", value, why)
    for name in ("get_rng_state", "set_rng_state"):
        value = getattr(torch.cuda, name)
        points.put(f"torch.cuda.random:{name}", value, "Dynamo and AOTAutograd import it from here")
    if torch.version.cuda is None:
        points.put("torch.version:cuda", "13.0", "Inductor takes a build without for a CPU one")
    for name, value in (
        ("_cuda_getCurrentRawStream", lambda device: 0),
        ("_cuda_exchangeDevice", lambda device: 0),
        ("_cuda_maybeExchangeDevice", lambda device: 0),
        ("_cuda_getDevice", lambda: 0),
        ("_cuda_cudaCachingAllocator_is_enabled", lambda: True),
        ("_cuda_getCurrentBlasHandle", lambda: 0),
    ):
        points.put(f"torch._C:{name}", value, "a binding that a CPU build lacks", new=True)
