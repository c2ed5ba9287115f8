"""Every name of torch, Triton and this library that a dry run replaces, with the reason.

A name that torch no longer has is an error that says which, and what it was patched for. The names
are in groups, which the stages of :mod:`.selftest` try.
"""

from __future__ import annotations

import ctypes
import importlib
from operator import attrgetter
from typing import Any, NamedTuple

from staticgraph.dryrun import stubs, stubs_inductor
from staticgraph.dryrun.device_guard import torch_version
from staticgraph.dryrun.stubs import answers
from staticgraph.dryrun.targets import TargetDevice
from staticgraph.errors import DryRunBroken


class Patch(NamedTuple):
    """A replaced name.

    Attributes:
        symbol: ``module:attribute.path``.
        value: the replacement.
        why: the reason.
        wraps: whether ``value`` makes the replacement from what is there.
        new: whether the symbol may be missing: a CPU build of torch lacks some of CUDA's.
    """

    symbol: str
    value: Any
    why: str
    wraps: bool = False
    new: bool = False

    def apply(self) -> None:
        """Replaces the symbol.

        Raises:
            DryRunBroken: there is no such symbol.
        """
        module, _, path = self.symbol.partition(":")
        parents, _, name = path.rpartition(".")
        try:
            owner: Any = importlib.import_module(module)
            owner = attrgetter(parents)(owner) if parents else owner
            present = getattr(owner, name, None) if self.new else getattr(owner, name)
        except (ImportError, AttributeError):
            raise DryRunBroken(
                f"torch {torch_version()} has no {self.symbol.replace(':', '.')}, which the dry "
                f"run patches ({self.why})"
            ) from None
        setattr(owner, name, self.value(present) if self.wraps else self.value)


def rows(
    prefix: str, *entries: tuple[str, Any, str], wraps: bool = False, new: bool = False
) -> tuple[Patch, ...]:
    """Patches of names with one prefix: name, replacement and reason of each."""
    return tuple(Patch(prefix + name, value, why, wraps, new) for name, value, why in entries)


DRIVER = "asks the driver"
NO_ALLOCATOR = "there is no allocator"
ON_IMPORT = "bound to torch.cuda's own when imported"
FROM_HERE = "Dynamo and AOTAutograd import it from here"
LACKING = "a binding that a CPU build lacks"
UNSEEN = "allocates, or makes a view, past the dispatcher"
FOLDS = "folds a uniform value by running one element on the device"
MUTATES = "says what a graph mutates, and whether it is recorded"
CACHES = "caches what runs on a device"
CHOOSES = "torch asks the device which kernel to take"
FAKED_LATE = "torch.tensor(..., device='cuda') would be made on the device and faked then"
PUTS_BACK = "would put Triton's own driver back before a kernel is compiled for its registers"
# Taken as they are patched in torch.cuda.
INTERFACE = (
    *("current_device", "set_device", "device_count", "current_stream", "synchronize"),
    *("get_device_properties", "memory_allocated", "is_bf16_supported", "is_available"),
)


def patches_of(target: TargetDevice) -> dict[str, tuple[Patch, ...]]:
    """All patches for a target, by group, in the order in which they are applied.

    A CPU build of torch needs fewer than a CUDA build without a driver (torch 2.11, 2026-11-29).
    """
    described = answers(stubs.properties(target))
    cuda = rows(
        "torch.cuda:",
        ("is_available", answers(True), "everything asks it first"),
        ("_is_compiled", answers(True), "a CPU build says no to fake CUDA tensors"),
        ("is_initialized", answers(False), "else fake tensors ask the driver for the index"),
        ("_lazy_init", answers(), "would look for a driver"),
        ("init", answers(), "would look for a driver"),
        ("device_count", answers(1), DRIVER),
        ("current_device", answers(0), DRIVER),
        ("set_device", answers(), DRIVER),
        ("synchronize", answers(), "waits for the device"),
        ("empty_cache", answers(), NO_ALLOCATOR),
        ("get_device_properties", described, "Inductor chooses by them"),
        ("get_device_capability", answers(target.capability), "as above"),
        ("get_device_name", answers(target.device), "as above"),
        ("get_rng_state", stubs.random_state, "warm-ups save and restore it"),
        ("set_rng_state", answers(), "as above"),
        ("random.get_rng_state", stubs.random_state, FROM_HERE),
        ("random.set_rng_state", answers(), FROM_HERE),
        ("is_bf16_supported", answers(True), DRIVER),
        ("is_current_stream_capturing", answers(False), DRIVER),
        ("current_stream", answers(stubs.STREAM), "the wrapper asks for the stream to launch on"),
        ("Event", stubs.Event, "slots record when they are free"),
        ("_exchange_device", answers(0), "device contexts"),
        ("_maybe_exchange_device", answers(0), "as above; Dynamo wants two functions"),
        ("memory_allocated", answers(0), NO_ALLOCATOR),
        ("memory_reserved", answers(0), NO_ALLOCATOR),
    )
    as_patched = {patch.symbol.partition(":")[2]: patch.value for patch in cuda}
    return {
        "guard": rows(
            "torch._C:",
            ("_ensureCUDADeviceGuardSet", answers(), "would put torch's own guard back"),
        ),
        "cuda": (
            *cuda,
            Patch("torch.version:cuda", "13.0", "Inductor takes a build without for a CPU one"),
            *rows(
                "torch._C:_cuda_",
                ("getCurrentRawStream", answers(0), LACKING),
                ("exchangeDevice", answers(0), LACKING),
                ("maybeExchangeDevice", answers(0), LACKING),
                ("getDevice", answers(0), LACKING),
                ("cudaCachingAllocator_is_enabled", answers(True), LACKING),
                ("getCurrentBlasHandle", answers(0), LACKING),
                new=True,
            ),
        ),
        "fakes": rows(
            "torch._subclasses.fake_tensor:",
            ("init_gpu_context", answers(), "would make a real tensor"),
            ("FakeTensorMode.avoid_device_init", property(answers(True)), FAKED_LATE),
        ),
        "dynamo": rows(
            "torch._dynamo.device_interface:CudaInterface.",
            *((name, staticmethod(as_patched[name]), ON_IMPORT) for name in INTERFACE),
            ("exchange_device", staticmethod(answers(0)), DRIVER),
            ("maybe_exchange_device", staticmethod(answers(0)), DRIVER),
            ("get_raw_stream", staticmethod(answers(0)), DRIVER),
        ),
        "triton": rows(
            "triton.runtime.jit:",
            ("JITFunction.run", stubs.noted_launch, "there is no driver"),
            wraps=True,
        ),
        "attention": rows(
            "torch.nn.functional:",
            ("scaled_dot_product_attention", stubs.chosen_attention, CHOOSES),
            wraps=True,
        ),
        "library": rows(
            "staticgraph.batches.batch.static_batch:",
            ("StaticBatch.blank", stubs.device_blank, "fills through NumPy, not fake memory"),
            wraps=True,
        ),
        "inductor": (*_without_device(), *_noted()),
    }


def _without_device() -> tuple[Patch, ...]:
    """What Inductor would do on a device while it compiles."""
    return (
        Patch("torch._functorch.config:enable_autograd_cache", False, CACHES),
        *rows(
            "torch._inductor.config:",
            ("fx_graph_cache", False, CACHES),
            ("compile_threads", 1, "worker processes would not be patched"),
            ("shape_padding", False, "is decided by timing the device"),
            *((name, False, "loads onto the device") for name in stubs_inductor.LAUNCHERS),
        ),
        *rows(
            "torch._C._dynamo.guards:",
            ("_empty_strided_cpu", stubs.allocator("cpu"), UNSEEN),
            ("_reinterpret_tensor", stubs.reinterpret, UNSEEN),
            ("assert_size_stride", answers(), "reads a tensor past the dispatcher"),
        ),
        *rows(
            "torch._C._dynamo.guards:",
            ("_empty_strided_cuda", stubs.allocator("cuda"), UNSEEN),
            ("assert_alignment", answers(), "reads an address"),
            ("_cuda_getCurrentRawStream", answers(0), DRIVER),
            new=True,
        ),
        *rows(
            "torch._inductor.fx_passes.joint_graph:",
            ("lazy_init", stubs_inductor.without_gpu, "traces patterns over real tensors there"),
            ("UniformValueConstantFolder._deduce_value", stubs_inductor.on_cpu, FOLDS),
            ("UniformValueConstantFolder._add_peephole_patterns", stubs_inductor.on_cpu, FOLDS),
            wraps=True,
        ),
        Patch("torch._inductor.runtime.triton_helpers:set_driver_to_gpu", answers(), PUTS_BACK),
    )


def _noted() -> tuple[Patch, ...]:
    """What Inductor would launch or record."""
    trees = stubs_inductor.TREES
    return (
        *rows(
            "torch._inductor.async_compile:AsyncCompile.",
            ("triton", stubs_inductor.triton, "would load the kernel onto the device"),
            ("cpp_pybinding", stubs_inductor.host_loop, "would read memory that fakes have not"),
        ),
        *rows(
            "torch._inductor.",
            ("output_code:CompiledFxGraph.__init__", stubs_inductor.noted_graph, MUTATES),
            ("output_code:CompiledFxGraph.post_compile", stubs_inductor.noted_calls, MUTATES),
            ("scheduler:Scheduler.codegen", stubs_inductor.noted_causes, "knows what splits it"),
            wraps=True,
        ),
        *rows(
            "torch._inductor.",
            ("compile_fx:cudagraphify", stubs_inductor.cudagraphify, "would record on the device"),
            ("cudagraph_trees:get_manager", answers(trees), "holds graphs of the device"),
            ("cudagraph_trees:reset_cudagraph_trees", trees.roots.clear, "frees them"),
        ),
    )


def install(
    guard: ctypes.CDLL, target: TargetDevice, leave_out: str | None = None
) -> dict[str, list[str]]:
    """Patches this process permanently; returns the symbols of each group.

    Args:
        guard: as returned by :func:`staticgraph.dryrun.device_guard.load`.
        target: the device to emulate.
        leave_out: a symbol not to patch, used to test the self-test.

    Raises:
        DryRunBroken: torch no longer has a symbol; the message names it.
    """
    from triton.runtime import driver

    guard.install_fake_cuda_guard()
    driver.set_active(stubs.driver_for(target))
    groups = patches_of(target)
    for patches in groups.values():
        for patch in patches:
            if patch.symbol != leave_out:
                patch.apply()
    return {name: [patch.symbol for patch in patches] for name, patches in groups.items()}
