"""Which graphs share a batch: pure functions of sizes, compiled with numba, without torch."""

from staticgraph.packing.stream import pack_stream

__all__ = ["pack_stream"]
