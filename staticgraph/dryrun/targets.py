"""The devices that a step can be compiled for, as described by their vendor's data sheets.

Sources (NVIDIA): "H100 Tensor Core GPU Datasheet" and "H200 Tensor Core GPU Datasheet" (SXM
columns), "A100 Tensor Core GPU Datasheet" (A100 80GB SXM column), "L4 Tensor Core GPU Datasheet";
numbers of multiprocessors, L2 and shared memory from the architecture whitepapers "H100 Tensor
Core GPU Architecture", "A100 Tensor Core GPU Architecture" and "Ada GPU Architecture", and from the
CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Rates are dense: the
sheets' figures "with sparsity" are twice as high.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class TargetDevice:
    """A device as described by its data sheet.

    Attributes:
        name: the name that users pass.
        device: the name that the driver reports.
        capability: compute capability, major and minor.
        multiprocessors: streaming multiprocessors (SMs).
        memory_bytes: of the device.
        bandwidth_bytes_s: of its memory.
        float32_flops, tensor_flops: per second, of plain float32 and of bfloat16 on tensor cores.
        l2_bytes: second-level cache.
        shared_bytes: shared memory that one thread block may request.
        shared_multiprocessor_bytes: shared memory per multiprocessor.
        threads: resident threads per multiprocessor.
        clock_khz, memory_clock_khz, bus_bits: as the driver reports them; only Inductor's own
            estimates read them.
    """

    name: str
    device: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    bandwidth_bytes_s: float
    float32_flops: float
    tensor_flops: float
    l2_bytes: int
    shared_bytes: int
    shared_multiprocessor_bytes: int
    threads: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int


TARGETS = {
    target.name: target
    for target in (
        TargetDevice(
            "h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 80 * 10**9, 3.35e12, 67e12, 989e12,
            50 * MIB, 227 * KIB, 228 * KIB, 2048, 1_980_000, 2_619_000, 5120,
        ),
        TargetDevice(
            "h200", "NVIDIA H200", (9, 0), 132, 141 * 10**9, 4.8e12, 67e12, 989e12,
            50 * MIB, 227 * KIB, 228 * KIB, 2048, 1_980_000, 3_201_000, 6144,
        ),
        TargetDevice(
            "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 80 * 10**9, 2.039e12, 19.5e12, 312e12,
            40 * MIB, 163 * KIB, 164 * KIB, 2048, 1_410_000, 1_593_000, 5120,
        ),
        TargetDevice(
            "l4", "NVIDIA L4", (8, 9), 58, 24 * 10**9, 300e9, 30.3e12, 121e12,
            48 * MIB, 99 * KIB, 100 * KIB, 1536, 2_040_000, 6_251_000, 192,
        ),
    )
}  # fmt: skip


def target_of(name: str) -> TargetDevice:
    """Returns a target by name.

    Raises:
        ValueError: there is no target with this name.
    """
    if name not in TARGETS:
        raise ValueError(f"target {name!r}; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
