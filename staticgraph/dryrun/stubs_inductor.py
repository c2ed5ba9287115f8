"""Inductor: everything up to the launch is real; a launch is noted instead of made.

The generated wrapper runs over fake tensors: allocations, products and custom operators go through
their fake kernels, and Triton launches arrive here. Graphs that torch would record as CUDA graphs
are counted where torch requests the recording.
"""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from staticgraph.dryrun.launches import WATCH, CompiledGraph, tensors
from staticgraph.dryrun.report import Cause
from staticgraph.dryrun.stubs import PatchPoints, patch_device
from staticgraph.dryrun.targets import TargetDevice
from staticgraph.dryrun.watcher import host_part, of_trace

CPU = torch.device("cpu")
INDUCTOR_EMULATED = (
    "autotuning and padding of products are off, since both time kernels on the device: each "
    "Triton kernel has the first of its configurations"
)


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
    points.group = "guard"
    points.put(
        "torch._C:_ensureCUDADeviceGuardSet", lambda: None, "would put torch's own guard back"
    )
    guard.install_fake_cuda_guard()
    patch_device(points, target)
    points.group = "inductor"
    for patch in (_options, _allocations, _folding, _kernels, _graphs, _recordings):
        patch(points)
    return points


def _options(points: PatchPoints) -> None:
    for symbol, value, why in (
        ("torch._functorch.config:enable_autograd_cache", False, "caches what runs on a device"),
        ("torch._inductor.config:fx_graph_cache", False, "as above"),
        ("torch._inductor.config:compile_threads", 1, "worker processes would not be patched"),
        ("torch._inductor.config:shape_padding", False, "is decided by timing the device"),
    ):
        points.put(symbol, value, why)
    for name in ("use_static_cuda_launcher", "use_static_triton_launcher"):  # renamed in torch 2.12
        if hasattr(config, name):
            points.put(f"torch._inductor.config:{name}", False, "loads onto the device")


def _allocations(points: PatchPoints) -> None:
    guards = "torch._C._dynamo.guards"

    def allocator(device: str) -> Any:
        """A function that allocates an empty tensor on one device by size, stride and dtype."""
        return lambda size, stride, dtype: torch.empty_strided(
            size, stride, dtype=dtype, device=device
        )

    def reinterpret(tensor: Any, size: Any, stride: Any, offset: int = 0) -> Any:
        """A view of a tensor's memory; the offset is relative to the tensor's own."""
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)

    for name, value, why, new in (
        ("_empty_strided_cuda", allocator("cuda"), "allocates past the dispatcher", True),
        ("_empty_strided_cpu", allocator("cpu"), "allocates past the dispatcher", False),
        ("_reinterpret_tensor", reinterpret, "makes a view past the dispatcher", False),
        ("assert_size_stride", lambda *_: None, "reads a tensor past the dispatcher", False),
        ("assert_alignment", lambda *_: None, "reads an address", True),
        ("_cuda_getCurrentRawStream", lambda device: 0, "asks the driver", True),
    ):
        points.put(f"{guards}:{name}", value, why, new=new)


class _OnCpu(TorchDispatchMode):
    """Redirects operations that name any device to the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, lambda _: CPU, (args, kwargs or {}))
        return func(*args, **kwargs)


def _folding(points: PatchPoints) -> None:
    module = "torch._inductor.fx_passes.joint_graph"
    why = "traces its patterns over small real tensors on the device"
    lazy = points.real(f"{module}:lazy_init", why)

    @functools.cache
    def lazy_init(input_device: Any = None) -> Any:
        """Inductor's patterns, traced as if there were no GPU; once per argument."""
        available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
        try:
            return lazy(CPU) if input_device is not None else lazy()
        finally:
            torch.cuda.is_available = available

    points.put(f"{module}:lazy_init", lazy_init, why)
    for name in ("_deduce_value", "_add_peephole_patterns"):
        symbol = f"{module}:UniformValueConstantFolder.{name}"
        why = "folds a uniform value by running one element on the device"
        points.put(symbol, _on_cpu(points.real(symbol, why)), why)


def _on_cpu(real: Any) -> Any:
    def method(self: Any, *args: Any) -> Any:
        """The real method, with its tensors on the CPU."""
        with _OnCpu():
            return real(self, *args)

    return method


class _Kernel:
    """A stand-in for a compiled Triton kernel generated by Inductor."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Notes a launch; nothing is computed."""
        WATCH.inductor_kernel(self.name, (args, kwargs))


def _kernels(points: PatchPoints) -> None:
    compile_class = "torch._inductor.async_compile:AsyncCompile"

    def triton(self: Any, name: str, source: str, device_str: str = "cuda") -> _Kernel:
        """Notes the source under its name, and returns a kernel that only notes its launches."""
        WATCH.sources[source] = name
        return _Kernel(name)

    def cpp(self: Any, *_: Any, **__: Any) -> Any:
        """Returns a loop on the host that is only noted."""
        return lambda *args: host_part()

    points.put(
        "torch._inductor.runtime.triton_helpers:set_driver_to_gpu",
        lambda: None,
        "would put Triton's own driver back before a kernel is compiled for its registers",
    )
    points.put(f"{compile_class}.triton", triton, "would load the kernel onto the device")
    points.put(f"{compile_class}.cpp_pybinding", cpp, "would read memory that fakes have not")


def _graphs(points: PatchPoints) -> None:
    kind = "torch._inductor.output_code:CompiledFxGraph"
    why = "says what a graph mutates, and whether it is recorded"
    create = points.real(f"{kind}.__init__", why)

    def init(self: Any, current_callable: Any, graph: Any, gm: Any, *rest: Any, **kw: Any) -> None:
        """Makes the graph, and notes what it mutates and why it is not recorded."""
        create(self, current_callable, graph, gm, *rest, **kw)
        causes, WATCH.causes = WATCH.causes, []
        self._dry_run = CompiledGraph(
            backward=bool(graph.is_backward),
            devices={str(d): str(n) for d, n in graph.device_node_mapping.items()},
            disabled=self.disabled_cudagraphs_reason,
            static=frozenset(),
            mutated=frozenset(self.mutated_input_idxs),
            partitions=len(graph.partition_maps or ()),
            causes=causes,
        )
        WATCH.graphs.append(self._dry_run)

    points.put(f"{kind}.__init__", init, why)
    post = points.real(f"{kind}.post_compile", why)

    def post_compile(self: Any, *args: Any, **kwargs: Any) -> None:
        """Notes the static inputs, and wraps the graph so that every call is noted."""
        note = self._dry_run
        note.static = frozenset(self.fx_kwargs.get("static_input_idxs") or ())
        before, WATCH.graph = WATCH.graph, note
        try:
            post(self, *args, **kwargs)
        finally:
            WATCH.graph = before
        inner = self.current_callable

        def call(inputs: Any) -> Any:
            """Runs the graph, which is the current one for launches until it returns."""
            note.calls += 1
            before, WATCH.graph = WATCH.graph, note
            # Inputs that were created elsewhere as fakes, such as a seed, are counted when first
            # seen.
            WATCH.made(list(tensors(inputs)))
            try:
                return inner(inputs)
            finally:
                WATCH.graph = before
                WATCH.after_forward = True
                WATCH.after_backward |= note.backward

        self.current_callable = call

    points.put(f"{kind}.post_compile", post_compile, why)
    scheduler = "torch._inductor.scheduler:Scheduler"
    why = "knows which operation a recording cannot hold"
    points.real(f"{scheduler}.should_partition", why)
    codegen = points.real(f"{scheduler}.codegen", why)

    def codegen_noted(self: Any) -> Any:
        """Generates the code, after noting which operations would split the graph."""
        WATCH.causes = _causes(self)
        return codegen(self)

    points.put(f"{scheduler}.codegen", codegen_noted, why)


def _causes(scheduler: Any) -> list[Cause]:
    """Every operation at which torch would split a recording, each once."""
    causes = []
    with config.patch({"triton.cudagraphs": True}):
        for fused in scheduler.nodes:
            for node in fused.get_nodes():
                if node.node is None or not (reason := scheduler.should_partition(node)):
                    continue
                own = node.node.get_origin_node()
                origins = node.node.get_origins() if own is None else [own]
                for origin in origins:
                    operation = str(getattr(origin, "target", origin))
                    where = of_trace(origin.meta.get("stack_trace"))
                    causes.append(Cause(reason, operation, where))
                if not origins:
                    causes.append(Cause(reason, node.get_name()))
    return list(dict.fromkeys(causes))


class Trees:
    """A stand-in for torch's manager of recorded graphs that counts its recordings.

    Attributes:
        roots: as in the real manager, so that code that counts recordings there works here.
    """

    def __init__(self) -> None:
        self.roots: dict[int, list[Any]] = {}

    def record(self) -> None:
        """Counts one more recording."""
        self.roots.setdefault(0, []).append(SimpleNamespace(children={}))

    def set_to_running_backward(self) -> None:
        """Does nothing; backward graphs call it."""


TREES = Trees()


def _recordings(points: PatchPoints) -> None:
    why = "would record on the device"

    def cudagraphify(model: Any, static_input_idxs: Any = (), **kw: Any) -> Any:
        """Counts a recording instead of making it, or notes why there would be none."""
        note, runs = WATCH.graph, []
        mutated = set(kw.get("mutated_input_idxs", ()) or ()) - set(static_input_idxs)
        if mutated:  # torch_inductor.cudagraph_utils.check_for_mutation, checked at the first run
            WATCH.skips.append(f"skipping cudagraphs due to {len(mutated)} mutated inputs")
            return model
        if note is not None:
            note.recorded += 1

        def run(inputs: Any) -> Any:
            """Runs the model; the second run counts as the recording."""
            runs.append(None)
            if len(runs) == 2:  # the first run warms up, the second records
                TREES.record()
            return model(inputs)

        return run

    points.put("torch._inductor.compile_fx:cudagraphify", cudagraphify, why)
    trees = "torch._inductor.cudagraph_trees"
    points.put(f"{trees}:get_manager", lambda *_, **__: TREES, "holds graphs of the device")
    points.put(f"{trees}:reset_cudagraph_trees", TREES.roots.clear, "frees graphs of the device")
    symbol = "log_cudagraph_skip_and_bump_counter"
    report = points.real(
        f"torch._inductor.cudagraph_utils:{symbol}", "says why nothing is recorded"
    )

    def skip(message: str) -> Any:
        """Notes the reason, then reports it as torch does."""
        WATCH.skips.append(message)
        return report(message)

    for module in ("cudagraph_utils", "output_code"):
        points.put(f"torch._inductor.{module}:{symbol}", skip, "says why nothing is recorded")
