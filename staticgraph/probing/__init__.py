"""Three ways to read the memory of a step, behind one interface.

:class:`AllocatorReader` runs real steps and asks an allocator for its high-water mark (CUDA's, or
the CPU's as the profiler saw it); :class:`FakeTensorReader` runs the same step over fake tensors
and counts live storages, which takes no memory and no arithmetic, so that a laptop can plan for a
large card; :class:`GivenReader` takes numbers, for tests and for what was measured elsewhere.

All of them read a *warm* step (an optimizer's state exists from its second step on) in the shapes
that are recorded: the batch does not tell its real counts, so no layer can follow them. A reader
leaves behind what it found: model, optimizer, random state, and no more reserved memory.
"""
