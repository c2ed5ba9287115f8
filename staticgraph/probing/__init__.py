"""Two ways to read the memory of a step, with one interface.

:class:`AllocatorReader` runs real steps and queries an allocator for its high-water mark (CUDA's,
or the CPU's as seen by the profiler); :class:`FakeTensorReader` runs the same step over fake
tensors and counts live storages, which takes no memory and no arithmetic, so that a laptop can plan
for a large card.

Both read a *warm* step: an optimizer's state exists from its second step on.
"""
