"""The lower bound ("floor") of a training step's time on an H200: modelled, not measured.

It is computed from counted kernels, FLOPs and bytes: 67 TFLOP/s in float32, 790 in bfloat16,
4.3 TB/s, and 2 microseconds per recorded node. A measured step is reported as a multiple of its
floor, which shows how much there is to gain.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = "modelled"


class Floor(NamedTuple):
    """Milliseconds per step: recorded as it is, recorded with fused kernels, and the roofline."""

    recorded_ms: float
    fused_fp32_ms: float
    fused_bf16_ms: float
    roofline_fp32_ms: float
    roofline_bf16_ms: float

    def fused_ms(self, precision: str) -> float:
        """Returns the floor to compare with; TF32 uses that of float32, which is higher."""
        return self.fused_bf16_ms if precision == "bf16" else self.fused_fp32_ms


# (model, layers, hidden, batch size). GINE for molhiv's sizes, GPS 10x64 for ZINC's, GPS 10x384 for
# PCQM4Mv2's: a GPS step over the larger molecules of HIV is slightly above its floor here.
FLOORS = {
    ("gine", 5, 300, 32): Floor(1.23, 0.50, 0.32, 0.13, 0.03),
    ("gine", 5, 300, 128): Floor(3.2, 1.2, 0.48, 0.53, 0.08),
    ("gine", 5, 300, 256): Floor(4.9, 2.1, 0.69, 1.05, 0.16),
    ("gine", 5, 300, 1024): Floor(15.5, 7.5, 2.0, 4.2, 0.63),
    ("gps", 10, 64, 32): Floor(3.1, 0.91, 0.85, 0.04, 0.02),
    ("gps", 10, 64, 128): Floor(3.5, 1.2, 0.95, 0.16, 0.08),
    ("gps", 10, 64, 256): Floor(4.0, 1.6, 1.1, 0.32, 0.16),
    ("gps", 10, 384, 32): Floor(5.2, 2.5, 1.3, 0.84, 0.19),
    ("gps", 10, 384, 256): Floor(17.4, 12.7, 3.7, 6.8, 1.1),
}


def floor_ms(model: str, layers: int, hidden: int, batch_size: int, precision: str) -> float | None:
    """Returns the floor of a step, recorded and fused; None if it was not modelled."""
    found = FLOORS.get((model, layers, hidden, batch_size))
    return None if found is None else found.fused_ms(precision)
