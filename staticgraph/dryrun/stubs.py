"""A device without hardware: a data sheet answers what torch, Dynamo and Triton ask a driver.

What these replace, and why, is in :mod:`.patches`; Inductor's are in :mod:`.stubs_inductor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.dryrun.launches import WATCH
from staticgraph.dryrun.targets import KIB, TargetDevice
from staticgraph.internals.dispatch import tree_map_only
from staticgraph.probing.fake_tensors import fake_batch

WARP, REGISTERS = 32, 65536
STREAM = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0)
RANDOM_STATE_BYTES = 16


def answers(value: Any = None) -> Callable[..., Any]:
    """A function that returns a value, whatever it is asked."""
    return lambda *_, **__: value


def random_state(device: Any = "cuda") -> Tensor:
    """Zeros of the length of a device's random state, on the CPU."""
    return torch.zeros(RANDOM_STATE_BYTES, dtype=torch.uint8)


def properties(target: TargetDevice) -> SimpleNamespace:
    """What Inductor reads of ``torch.cuda.get_device_properties``, for a target."""
    return SimpleNamespace(
        name=target.device,
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=target.multiprocessors,
        warp_size=WARP,
        regs_per_multiprocessor=REGISTERS,
        max_threads_per_multi_processor=target.threads,
        max_threads_per_block=1024,
        shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=target.shared_bytes,
    )


class Event:
    """An event of the only stream, which never waits: nothing runs, and all work is done."""

    record: Callable[..., Any] = staticmethod(answers())
    wait: Callable[..., Any] = staticmethod(answers())
    synchronize: Callable[..., Any] = staticmethod(answers())
    query: Callable[..., Any] = staticmethod(answers(True))

    def __init__(self, **options: Any) -> None:
        """Accepts the options of ``torch.cuda.Event`` and ignores them."""


def driver_for(target: TargetDevice) -> Any:
    """What Triton asks its driver while it compiles."""
    from triton.backends.compiler import GPUTarget

    major, minor = target.capability
    return SimpleNamespace(
        get_current_target=answers(GPUTarget("cuda", 10 * major + minor, WARP)),
        get_current_device=answers(0),
        get_current_stream=answers(0),
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


def noted_launch(run: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces Triton's launch: compiles for the target where requested, and notes it."""

    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = None
        if WATCH.compiles:
            bare, named = tree_map_only(Tensor, Pointer, (args, kwargs))
            kernel = run(self, *bare, grid=grid, warmup=True, **named)
        if not warmup:
            WATCH.own_kernel(self.fn, kernel, (args, kwargs))
        return kernel

    return launch


ALIGNED_BYTES = 16
FLASH_MAX_WIDTH = 256
ATTENTION_EMULATED = (
    "the kernel of scaled_dot_product_attention is chosen by rule: flash in half precision without "
    "a mask, else memory-efficient"
)


def chosen_attention(real: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces attention by the kernel that a device would choose; torch would use weights.

    What is emulated (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp): flash attention in half
    precision without a mask; else the memory-efficient kernel; explicit weights where rows are not
    aligned to 16 bytes, in float64, and where the operands are not ``[batch, heads, rows,
    columns]``.
    """
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
        width = query.shape[-1]
        aligned = (width * query.dtype.itemsize) % ALIGNED_BYTES == 0
        on_device = query.device.type == "cuda" and query.dim() == 4
        if not (on_device and aligned) or query.dtype == torch.float64:
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

    return attention


def device_blank(real: Callable[..., StaticBatch]) -> Any:
    """Replaces ``StaticBatch.blank``: arrays of undefined values on the emulated device."""

    def blank(layout: SlotLayout, device: Any = "cpu") -> StaticBatch:
        on_host = torch.device(device).type == "cpu"
        return real(layout, device) if on_host else fake_batch(layout, device)

    return staticmethod(blank)


def allocator(device: str) -> Callable[..., Tensor]:
    """A function that allocates an empty tensor on one device by size, stride and dtype."""
    return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device=device)


def reinterpret(tensor: Tensor, size: Any, stride: Any, offset: int = 0) -> Tensor:
    """A view of a tensor's memory; the offset is relative to the tensor's own."""
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
