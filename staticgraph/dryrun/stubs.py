"""What a dry run does in place of torch's compiler where that would touch the device.

Everything up to the launch is real; a launch is noted instead of made. The wrapper that Inductor
generated runs over fake tensors: allocations, products and custom operators go through their fake
kernels, and Triton launches arrive here. Graphs that torch would record as CUDA graphs are counted
where torch requests the recording. What these replace, and why, is in :mod:`.patches`, which must
be first: importing this module imports Dynamo, which binds what it asks of a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.dryrun.launches import WATCH, CompiledGraph, tensors
from staticgraph.dryrun.report import Cause
from staticgraph.dryrun.watcher import Refused, of_trace
from staticgraph.internals.dispatch import TorchDispatchMode, tree_map_only
from staticgraph.probing.fake_tensors import fake_batch


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
            name = self.fn.__name__  # this library's are all different
            WATCH.launch("staticgraph", name, (args, kwargs))
            if kernel is not None:
                WATCH.kernels.setdefault(name, {})[kernel.hash] = kernel
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


CPU = torch.device("cpu")
# Renamed in torch 2.12.
LAUNCHERS = [
    name
    for name in ("use_static_cuda_launcher", "use_static_triton_launcher")
    if hasattr(config, name)
]
INDUCTOR_EMULATED = (
    "autotuning and padding of products are off, since both time kernels on the device: each "
    "Triton kernel has the first of its configurations"
)


class _OnCpu(TorchDispatchMode):
    """Redirects operations that name any device to the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, lambda _: CPU, (args, kwargs or {}))
        return func(*args, **kwargs)


def without_gpu(lazy_init: Callable[..., Any]) -> Callable[..., Any]:
    """Traces Inductor's patterns as if there were no GPU; once per argument."""

    @cache
    def traced(input_device: Any = None) -> Any:
        available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
        try:
            return lazy_init(CPU) if input_device is not None else lazy_init()
        finally:
            torch.cuda.is_available = available

    return traced


def on_cpu(real: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a method with its tensors on the CPU."""

    def method(self: Any, *args: Any) -> Any:
        with _OnCpu():
            return real(self, *args)

    return method


def triton(self: Any, name: str, source: str, device_str: str = "cuda") -> Any:
    """Notes the source under its name, and returns a kernel that only notes its launches."""
    WATCH.sources[source] = name

    def run(*args: Any, **kwargs: Any) -> None:
        WATCH.launch("inductor", name, (args, kwargs), f"inductor::{name}")

    return SimpleNamespace(run=run)


def host_loop(*_: Any, **__: Any) -> Any:
    """Returns a loop on the host that is only noted, and refused while a step is recorded."""

    def run(*_: Any) -> None:
        if WATCH.recording:
            raise Refused("operation on another device (cpu)", "a part that Inductor wrote")
        WATCH.launch("host", "cpp_fused", ())

    return run


def noted_graph(post: Callable[..., None]) -> Callable[..., None]:
    """Finishes a compiled graph, notes what it is, and wraps it so that every call is noted."""

    def post_compile(self: Any, *args: Any, **kwargs: Any) -> None:
        unrecordable = self.cudagraph_info.cudagraph_fail_reasons if self.cudagraph_info else ()
        skips = filter(None, [self.disabled_cudagraphs_reason, *unrecordable])
        static = self.fx_kwargs.get("static_input_idxs") or ()
        note = CompiledGraph(
            backward=bool(self.fx_kwargs.get("is_backward")),
            devices=frozenset(kind if kind == "cpu" else f"{kind}:0" for kind in self.device_types),
            moving=len(set(self.mutated_input_idxs).difference(static)),
            partitions=len(self.partition_maps or ()),
            causes=[*WATCH.causes, *map(Cause, skips)],
        )
        WATCH.causes = []
        WATCH.graphs.append(note)
        with WATCH.running(note):
            post(self, *args, **kwargs)
        inner = self.current_callable

        def call(inputs: Any) -> Any:
            try:
                with WATCH.running(note):
                    # Inputs that were created elsewhere as fakes, such as a seed, are counted when
                    # first seen.
                    WATCH.count_results(list(tensors(inputs)))
                    return inner(inputs)
            finally:
                WATCH.after_forward = True
                WATCH.after_backward |= note.backward

        self.current_callable = call

    return post_compile


def noted_causes(codegen: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Generates the code, after noting which operations would split the graph."""

    def generate(self: Any) -> Any:
        WATCH.causes = _causes(self)
        return codegen(self)

    return generate


def _causes(scheduler: Any) -> list[Cause]:
    """Every operation at which torch would split a recording, each once."""
    causes = []
    with config.patch({"triton.cudagraphs": True}):
        for fused in scheduler.nodes:
            for node in fused.get_nodes():
                if node.node is None or not (reason := scheduler.should_partition(node)):
                    continue
                origin_node = node.node.get_origin_node()
                origins = node.node.get_origins() if origin_node is None else [origin_node]
                for origin in origins:
                    operation = str(getattr(origin, "target", origin))
                    where = of_trace(origin.meta.get("stack_trace"))
                    causes.append(Cause(reason, operation, where))
                if not origins:
                    causes.append(Cause(reason, node.get_name()))
    return list(dict.fromkeys(causes))


# A stand-in for torch's manager of recorded graphs: code that counts recordings looks into its
# roots. Backward graphs call the function.
TREES = SimpleNamespace(roots={}, set_to_running_backward=lambda: None)


def cudagraphify(model: Any, static_input_idxs: Any = (), **kw: Any) -> Any:
    """Counts a recording instead of making it, or notes why there would be none."""
    note, runs = WATCH.graph, []
    assert note is not None, "a graph is recorded while it is compiled"
    mutated = set(kw.get("mutated_input_idxs", ()) or ()) - set(static_input_idxs)
    if mutated:  # torch_inductor.cudagraph_utils.check_for_mutation, checked at the first run
        note.causes.append(Cause(f"skipping cudagraphs due to {len(mutated)} mutated inputs"))
        return model
    note.recorded += 1

    def run(inputs: Any) -> Any:
        runs.append(None)
        if len(runs) == 2:  # the first run warms up, the second records
            TREES.roots.setdefault(0, []).append(SimpleNamespace(children={}))
        return model(inputs)

    return run
