"""Every name of torch, Triton and this library that a dry run replaces, with the reason.

A name that torch no longer has is an error that says which, and what it was patched for. The names
are in groups, which the stages of :mod:`.selftest` try. The device comes first, where a data sheet
answers what is asked of a driver: Dynamo binds what it asks of ``torch.cuda`` when it is imported,
and what replaces calls of the compiler (:mod:`.stubs`) imports Dynamo.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from staticgraph.dryrun.device_guard import torch_version
from staticgraph.dryrun.targets import KIB, TargetDevice
from staticgraph.errors import DryRunBroken

WARP, REGISTERS = 32, 65536
STREAM = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0)


def answers(value: Any = None) -> Callable[..., Any]:
    """A function that returns a value, whatever it is asked."""
    return lambda *_, **__: value


# An event of the only stream never waits: nothing runs, and all work is done.
EVENT = SimpleNamespace(
    record=answers(), wait=answers(), synchronize=answers(), query=answers(True)
)
RANDOM_STATE = torch.zeros(16, dtype=torch.uint8)  # as many bytes as a device has


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


def driver_for(target: TargetDevice) -> Any:
    """What Triton asks its driver while it compiles."""
    from triton.backends.compiler import GPUTarget

    major, minor = target.capability
    return SimpleNamespace(
        get_current_target=answers(GPUTarget("cuda", 10 * major + minor, WARP)),
        get_current_device=answers(0),
        get_current_stream=answers(0),
    )


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
            owner = resolve_name(f"{module}:{parents}")
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
LACKING = "a binding that a CPU build lacks"
UNSEEN = "allocates, or makes a view, past the dispatcher"
FOLDS = "folds a uniform value by running one element on the device"
MUTATES = "says what a graph mutates, and whether it is recorded"
CACHES = "caches what runs on a device"
CHOOSES = "torch asks the device which kernel to take"
FAKED_LATE = "torch.tensor(..., device='cuda') would be made on the device and faked then"
PUTS_BACK = "would put Triton's own driver back before a kernel is compiled for its registers"

Table = dict[str, tuple[Patch, ...]]


def device_patches(target: TargetDevice) -> Table:
    """What stands for the device, by group, in the order in which it is applied.

    A CPU build of torch (2.13) needs fewer than CUDA builds without a driver (2.11 and 2.14); with
    these rows the self-test and steps in every mode pass on all three (2026-11-30).
    """
    return {
        "guard": rows(
            "torch._C:",
            ("_ensureCUDADeviceGuardSet", answers(), "would put torch's own guard back"),
        ),
        "cuda": (
            *rows(
                "torch.cuda:",
                ("is_available", answers(True), "everything asks it first"),
                ("_is_compiled", answers(True), "a CPU build says no to fake CUDA tensors"),
                ("is_initialized", answers(False), "else fake tensors ask the driver for an index"),
                ("_lazy_init", answers(), "would look for a driver"),
                ("device_count", answers(1), DRIVER),
                ("current_device", answers(0), DRIVER),
                ("set_device", answers(), DRIVER),
                ("synchronize", answers(), "waits for the device"),
                ("get_device_properties", answers(properties(target)), "Inductor chooses by them"),
                ("get_rng_state", answers(RANDOM_STATE), "warm-ups save it"),
                (
                    "random.get_rng_state",
                    answers(RANDOM_STATE),
                    "Dynamo and AOTAutograd take it from here",
                ),
                ("is_current_stream_capturing", answers(False), DRIVER),
                ("current_stream", answers(STREAM), "the wrapper launches on it"),
                ("_exchange_device", answers(0), "device contexts"),
                ("_maybe_exchange_device", answers(0), "as above; Dynamo wants two functions"),
            ),
            Patch("torch.version:cuda", "13.0", "Inductor takes a build without for a CPU one"),
            *rows(
                "torch._C:_cuda_",
                ("getCurrentRawStream", answers(0), LACKING),
                ("cudaCachingAllocator_is_enabled", answers(True), LACKING),
                new=True,
            ),
        ),
    }


def compiler_patches() -> Table:
    """What torch and Triton do on a device while they compile, run or record, by group."""
    from staticgraph.dryrun import stubs

    return {
        "fakes": rows(
            "torch._subclasses.fake_tensor:",
            ("init_gpu_context", answers(), "would make a real tensor"),
            ("FakeTensorMode.avoid_device_init", property(answers(True)), FAKED_LATE),
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
        "library": (
            Patch("torch.cuda:Event", answers(EVENT), "slots record when they are free"),
            *rows(
                "staticgraph.batches.batch.static_batch:",
                ("StaticBatch.blank", stubs.device_blank, "fills through NumPy, not fake memory"),
                wraps=True,
            ),
        ),
        "inductor": (
            Patch("torch._functorch.config:enable_autograd_cache", False, CACHES),
            *rows(
                "torch._inductor.config:",
                ("fx_graph_cache", False, CACHES),
                ("compile_threads", 1, "worker processes would not be patched"),
                ("shape_padding", False, "is decided by timing the device"),
                *((name, False, "loads onto the device") for name in stubs.LAUNCHERS),
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
                new=True,
            ),
            *rows(
                "torch._inductor.fx_passes.joint_graph:",
                ("lazy_init", stubs.without_gpu, "traces patterns over real tensors there"),
                ("UniformValueConstantFolder._deduce_value", stubs.on_cpu, FOLDS),
                ("UniformValueConstantFolder._add_peephole_patterns", stubs.on_cpu, FOLDS),
                wraps=True,
            ),
            *rows(
                "torch._inductor.async_compile:AsyncCompile.",
                ("triton", stubs.triton, "would load the kernel onto the device"),
                ("cpp_pybinding", stubs.host_loop, "would read memory that fakes have not"),
            ),
            *rows(
                "torch._inductor.",
                ("output_code:CompiledFxGraph.post_compile", stubs.noted_graph, MUTATES),
                ("scheduler:Scheduler.codegen", stubs.noted_causes, "knows what splits it"),
                wraps=True,
            ),
            *rows(
                "torch._inductor.",
                ("compile_fx:cudagraphify", stubs.cudagraphify, "would record on the device"),
                ("cudagraph_trees:get_manager", answers(stubs.TREES), "holds graphs of the device"),
                ("runtime.triton_helpers:set_driver_to_gpu", answers(), PUTS_BACK),
            ),
        ),
    }


# An environment variable that names a symbol not to patch, used to test the self-test.
LEAVE_OUT = "STATICGRAPH_DRYRUN_LEAVE_OUT"
# The symbols of each group that :func:`install` patched.
PATCHED: dict[str, list[str]] = {}


def install(guard: ctypes.CDLL, target: TargetDevice) -> None:
    """Patches this process permanently.

    Args:
        guard: as returned by :func:`staticgraph.dryrun.device_guard.load`.
        target: the device to emulate.

    Raises:
        DryRunBroken: torch no longer has a symbol; the message names it.
    """
    from triton.runtime import driver

    guard.install_fake_cuda_guard()
    driver.set_active(driver_for(target))
    for table in (lambda: device_patches(target), compiler_patches):
        for group, patches in table().items():
            PATCHED[group] = [patch.symbol for patch in patches]
            for patch in patches:
                if patch.symbol != os.environ.get(LEAVE_OUT):
                    patch.apply()
