"""A training step for a GPU that is not there: compiled, recorded as far as one can, counted.

The problem: a GPU is rare, and whether a step records in one piece, how many kernels it launches
and what it holds is known only after it ran on one. The idea: the CPU build of torch has the whole
compiler. In a child process a device guard that does nothing is loaded before torch
(:mod:`.guard`), torch is told of a device with the numbers of a data sheet (:mod:`.stubs`), and the
library's own runner trains a model of fake CUDA tensors: Dynamo, AOTAutograd, Inductor and ptxas do
their real work, and a launch is a line in a list.

What it does not do: run a kernel, or promise a time. What is compiled for a device was not run on
it; the report says so, and lists what was emulated. Every point at which torch is patched stands
below this folder, with its reason, and ``python -m staticgraph.dryrun.selftest`` says which of them
a new torch broke.

Nothing here touches the process that asks: the child alone believes in the device.
"""

from staticgraph.dryrun.ask import dry_run

__all__ = ["dry_run"]
