"""A training step for a GPU that is not present: compiled, recorded as far as possible, counted.

The problem: GPUs are scarce, and whether a step records in one piece, how many kernels it launches
and how much memory it holds is known only after it ran on one. The idea: the CPU build of torch has
the whole compiler. In a child process a device guard that does nothing is loaded before torch
(:mod:`.device_guard`), torch sees a device with the numbers of a data sheet (:mod:`.patches`), and
the library's own runner trains a model of fake CUDA tensors: Dynamo, AOTAutograd, Inductor and
ptxas do their real work, and a launch is only noted in a list.

It does not run a kernel, or promise a time. A step compiled for a device was not run on it; the
report says so, and lists what was emulated. Every name of torch that is patched is in one
table, with its reason, and ``python -m staticgraph.dryrun.selftest`` says which of them a new
torch version broke.

Nothing here changes the calling process: only the child sees the emulated device.
"""

from staticgraph.dryrun.start_child import dry_run

__all__ = ["dry_run"]
