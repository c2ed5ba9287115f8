"""The lower bound ("floor") of a training step's time on an H200: modelled, not measured.

It is computed from counted kernels, FLOPs and bytes: 67 TFLOP/s in float32, 790 in bfloat16,
4.3 TB/s, and 2 microseconds per recorded node. A measured step is reported as a multiple of its
floor, which shows how much there is to gain.
"""

from __future__ import annotations

# Milliseconds per step, recorded with fused kernels, in float32 and bfloat16, by model, layers,
# hidden and batch size. GINE for molhiv's sizes, GPS 10x64 for ZINC's, GPS 10x384 for PCQM4Mv2's: a
# GPS step over the larger molecules of HIV is slightly above its floor here.
FLOORS_MS = {
    ("gine", 5, 300, 32): (0.50, 0.32),
    ("gine", 5, 300, 128): (1.2, 0.48),
    ("gine", 5, 300, 256): (2.1, 0.69),
    ("gine", 5, 300, 1024): (7.5, 2.0),
    ("gps", 10, 64, 32): (0.91, 0.85),
    ("gps", 10, 64, 128): (1.2, 0.95),
    ("gps", 10, 64, 256): (1.6, 1.1),
    ("gps", 10, 384, 32): (2.5, 1.3),
    ("gps", 10, 384, 256): (12.7, 3.7),
}


def floor_ms(model: str, layers: int, hidden: int, batch_size: int, precision: str) -> float | None:
    """Returns the floor of a step, recorded and fused; None if it was not modelled."""
    floors = FLOORS_MS.get((model, layers, hidden, batch_size))
    return None if floors is None else floors[precision == "bf16"]
