"""Compile modes: torch's names, and the devices on which they make sense.

On a CPU ``reduce-overhead`` and ``max-autotune`` silently run without a CUDA graph, so requesting
them there is an error rather than a surprise in the log.
"""

from __future__ import annotations

from typing import NamedTuple

MODES = (
    "auto",
    "eager",
    "fused",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
    "cuda-graph",
)
# This library's: compiled by Inductor without its graphs, recorded by
# staticgraph.recording.recorded_steps.
OWN = "cuda-graph"
# This library's: the captured graph rewritten to its operators, and run as it is.
FUSED = "fused"
RECORDING_MODES = frozenset({"reduce-overhead", "max-autotune"})
# The modes that make no sense without CUDA.
CUDA_MODES = RECORDING_MODES | {OWN}


class Mode(NamedTuple):
    """The mode that runs, and why."""

    name: str
    reason: str

    @property
    def compiled(self) -> bool:
        """Whether torch.compile is used."""
        return self.name != "eager"

    @property
    def fused(self) -> bool:
        """Whether the captured graph is rewritten and runs as it is, without Inductor."""
        return self.name == FUSED

    @property
    def recording(self) -> bool:
        """Whether torch's graph trees record."""
        return self.name in RECORDING_MODES

    @property
    def by_library(self) -> bool:
        """Whether this library records."""
        return self.name == OWN

    @property
    def inductor(self) -> str:
        """The mode that is passed to torch.compile."""
        return "default" if self.by_library else self.name


def without_fused() -> str | None:
    """Returns why mode ``fused`` is impossible; None if nothing known before tracing prevents
    it."""
    from staticgraph.internals.hooks import has_pyg

    return None if has_pyg() else "its rewrites look for operations of PyG, which is not installed"


def resolve(mode: str, device_type: str, allow_cpu: bool = False) -> Mode:
    """Returns the mode to run on a device.

    Raises:
        ValueError: there is no such mode, or it records CUDA graphs on a device without them.
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}; choose one of {', '.join(MODES)}")
    if mode == "auto":
        if device_type == "cuda":
            return Mode("default", "auto: compiled, until warmup() has measured")
        # Inductor trains GINE 4x64 at 0.35 of eager speed on a CPU: two cores, 2026-11-20,
        # bench_runner --models gine:4x64 --batch-sizes 128 --modes eager default.
        return Mode("eager", f"auto: eager on {device_type}, where compiling GNNs is slower")
    if mode in CUDA_MODES and device_type != "cuda" and not allow_cpu:
        raise ValueError(
            f"mode={mode!r} records CUDA graphs, but the model is on {device_type}, where torch "
            "would run it silently without: move the model with .to('cuda'), use mode='default' "
            "or 'eager', or pass recording=Recording(allow_cpu=True) to run it so all the same"
        )
    return Mode(mode, "as asked")
