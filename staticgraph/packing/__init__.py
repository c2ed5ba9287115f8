"""Which graphs share a batch: pure functions of sizes, compiled with numba, without torch."""

from staticgraph.packing.choose_packing import pack_histogram
from staticgraph.packing.packing_result import Packing, harmonic_mean, volume_bound
from staticgraph.packing.stream import pack_stream

__all__ = ["Packing", "harmonic_mean", "pack_histogram", "pack_stream", "volume_bound"]
