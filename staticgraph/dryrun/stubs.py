"""A device without hardware: a data sheet answers what torch, Dynamo and Triton ask a driver.

Each patch names its symbol, its group and its reason (:class:`PatchPoints`); a symbol that torch no
longer has is an error that names it, and the self-test tries every group. Inductor's patches are in
:mod:`.inductor`.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.dryrun import launches
from staticgraph.dryrun.guard import torch_version
from staticgraph.dryrun.targets import KIB, TargetDevice
from staticgraph.errors import DryRunBroken


@dataclass(frozen=True, slots=True)
class PatchPoint:
    """A patched symbol as ``module:attribute.path``, its group, and the reason."""

    symbol: str
    group: str
    why: str


class PatchPoints:
    """Applies patches and keeps a list of them.

    Args:
        leave_out: a symbol that is not patched.

    Attributes:
        points: what was patched.
        group: of the next patches; the self-test tries each group as one.
    """

    group: str

    def __init__(self, leave_out: str | None = None) -> None:
        self.points: list[PatchPoint] = []
        self.group = ""
        self._leave_out = leave_out

    def put(self, symbol: str, value: Any, why: str, new: bool = False) -> None:
        """Replaces a symbol by a value.

        Args:
            symbol: ``module:attribute.path``.
            value: the replacement.
            why: the reason, for the message.
            new: whether the symbol may be missing: a CPU build of torch lacks some of CUDA's.

        Raises:
            DryRunBroken: there is no such symbol.
        """
        if not new:
            self.real(symbol, why)
        owner, name = _owner(symbol, why)
        self.points.append(PatchPoint(symbol, self.group, why))
        if symbol != self._leave_out:
            setattr(owner, name, value)

    def real(self, symbol: str, why: str) -> Any:
        """Returns the current value of a symbol, for its replacement to call."""
        owner, name = _owner(symbol, why)
        if not hasattr(owner, name):
            raise _missing(symbol, why)
        return getattr(owner, name)


def _owner(symbol: str, why: str) -> tuple[Any, str]:
    module, _, path = symbol.partition(":")
    parents, _, name = path.rpartition(".")
    try:
        owner: Any = importlib.import_module(module)
        return (attrgetter(parents)(owner) if parents else owner), name
    except (ImportError, AttributeError):
        raise _missing(symbol, why) from None


def _missing(symbol: str, why: str) -> DryRunBroken:
    return DryRunBroken(
        f"torch {torch_version()} has no {symbol.replace(':', '.')}, which the dry run patches "
        f"({why})"
    )


# ---------------------------------------------------------------------- torch.cuda

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


def _patch_cuda(points: PatchPoints, target: TargetDevice) -> None:
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


# ---------------------------------------------------------------------- attention

ATTENTION = "torch.nn.functional:scaled_dot_product_attention"
ATTENTION_WHY = "torch asks the device which kernel to take"
ALIGNED_BYTES = 16
FLASH_MAX_WIDTH = 256
ATTENTION_EMULATED = (
    "the kernel of scaled_dot_product_attention is chosen by rule: flash in half precision without "
    "a mask, else memory-efficient"
)


def _patch_attention(points: PatchPoints) -> None:
    """Patches attention to choose its kernel as on a device, without which torch uses weights.

    What is emulated (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): flash attention in half
    precision without a mask; else the memory-efficient kernel; explicit weights where rows are not
    aligned to 16 bytes, in float64, and where the operands are not ``[batch, heads, rows,
    columns]``.
    """
    real = points.real(ATTENTION, ATTENTION_WHY)
    aten = torch.ops.aten

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Like torch's function, but with the fused kernel that the target would choose, if any."""
        width = query.shape[-1]
        aligned = (width * query.dtype.itemsize) % ALIGNED_BYTES == 0
        if (
            query.device.type != "cuda"
            or query.dim() != 4
            or query.dtype == torch.float64
            or not aligned
        ):
            return real(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        if attn_mask is None and query.dtype != torch.float32 and width <= FLASH_MAX_WIDTH:
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale
            )[0]
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
            attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
        )[0]

    points.put(ATTENTION, attention, ATTENTION_WHY)


# ---------------------------------------------------------------------- Triton


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


def _patch_triton(points: PatchPoints, target: TargetDevice) -> None:
    """Activates the driver and patches Triton's launches so that they are noted."""
    from triton.runtime import driver

    driver.set_active(driver_for(target))
    run = points.real("triton.runtime.jit:JITFunction.run", "there is no driver")

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

    points.put("triton.runtime.jit:JITFunction.run", launch_noted, "there is no driver")


# ---------------------------------------------------------------------- this library

_real_blank = StaticBatch.blank


def blank(layout: SlotLayout, device: Any = "cpu") -> StaticBatch:
    """Like ``StaticBatch.blank``, with arrays of undefined values on the emulated device."""
    if torch.device(device).type == "cpu":
        return _real_blank(layout, device)
    return StaticBatch(
        layout,
        {
            entry.name: torch.empty(
                entry.shape, dtype=getattr(torch, entry.dtype.name), device=device
            )
            for entry in layout.entries
        },
    )


# ---------------------------------------------------------------------- Dynamo

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


def _patch_dynamo(points: PatchPoints) -> None:
    """Patches ``CudaInterface``, which bound torch.cuda's original functions when imported."""
    for name in AS_TORCH_CUDA:
        value = staticmethod(getattr(torch.cuda, name))
        points.put(f"{INTERFACE}.{name}", value, "bound to torch.cuda's own when imported")
    for name in ("exchange_device", "maybe_exchange_device", "get_raw_stream"):
        points.put(f"{INTERFACE}.{name}", staticmethod(lambda device: 0), "asks the driver")
    points.put(f"{INTERFACE}.is_available", staticmethod(lambda: True), "asks the driver")


FAKE_TENSORS = "torch._subclasses.fake_tensor"


def patch_device(points: PatchPoints, target: TargetDevice) -> None:
    """Patches everything but Inductor: each group is a stage of the self-test or part of one."""
    points.group = "cuda"
    _patch_cuda(points, target)
    points.group = "fakes"
    points.put(f"{FAKE_TENSORS}:init_gpu_context", lambda *_: None, "would make a real tensor")
    points.put(
        f"{FAKE_TENSORS}:FakeTensorMode.avoid_device_init",
        property(lambda self: True),
        "torch.tensor(..., device='cuda') would be made on the device and faked then",
    )
    points.group = "dynamo"
    _patch_dynamo(points)
    points.group = "triton"
    _patch_triton(points, target)
    points.group = "attention"
    _patch_attention(points)
    points.group = "library"
    points.put(
        "staticgraph.batches.batch.static_batch:StaticBatch.blank",
        staticmethod(blank),
        "fills through NumPy, which cannot use fake memory",
    )
