"""The devices that a step can be compiled for, as described by their vendor's data sheets.

Sources (NVIDIA): "H100 Tensor Core GPU Datasheet" and "H200 Tensor Core GPU Datasheet" (SXM
columns), "A100 Tensor Core GPU Datasheet" (A100 80GB SXM column), "L4 Tensor Core GPU Datasheet";
numbers of multiprocessors and shared memory from the architecture whitepapers "H100 Tensor
Core GPU Architecture", "A100 Tensor Core GPU Architecture" and "Ada GPU Architecture", and from the
CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Rates are dense: the
sheets' figures "with sparsity" are twice as high.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class TargetDevice:
    """A device as described by its data sheet.

    Attributes:
        name: the name that users pass.
        device: the name that the driver reports.
        capability: compute capability, major and minor.
        multiprocessors: streaming multiprocessors (SMs).
        bandwidth_bytes_s: of its memory.
        float32_flops, tensor_flops: per second, of plain float32 and of bfloat16 on tensor cores.
        shared_bytes: shared memory that one thread block may request.
        threads: resident threads per multiprocessor.
    """

    name: str
    device: str
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth_bytes_s: float
    float32_flops: float
    tensor_flops: float
    shared_bytes: int
    threads: int


TARGETS = {
    target.name: target
    for target in (
        TargetDevice(
            "h100", "NVIDIA H100 80GB HBM3", (9, 0), 132, 3.35e12, 67e12, 989e12, 227 * KIB, 2048,
        ),
        TargetDevice(
            "h200", "NVIDIA H200", (9, 0), 132, 4.8e12, 67e12, 989e12, 227 * KIB, 2048,
        ),
        TargetDevice(
            "a100", "NVIDIA A100-SXM4-80GB", (8, 0), 108, 2.039e12, 19.5e12, 312e12,
            163 * KIB, 2048,
        ),
        TargetDevice(
            "l4", "NVIDIA L4", (8, 9), 58, 300e9, 30.3e12, 121e12, 99 * KIB, 1536,
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
