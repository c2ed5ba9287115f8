"""Checks whether a mode can run on a device, if possible before torch is imported."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata

from staticgraph.steps.compilation.modes import CUDA_MODES


def check_mode(
    args: argparse.Namespace, mode: str, device: str, allow_cpu: bool | None = None
) -> None:
    """Exits with a usage error if a mode records CUDA graphs and there is certainly no CUDA.

    Before torch is imported, this is decided by the requested device and the version of torch's
    wheel.

    Args:
        args: the arguments of the command.
        mode: the compile mode.
        device: the value of ``--device``.
        allow_cpu: whether the mode may run without recording; None if the command has no such
            option.
    """
    if mode not in CUDA_MODES or allow_cpu or not _without_cuda(device):
        return
    others = "fused, default, eager or auto"
    if mode == "max-autotune":
        others = f"max-autotune-no-cudagraphs, {others}"
    anyhow = "" if allow_cpu is None else "; --allow-cpu runs it all the same, and records nothing"
    args.parser.error(
        f"argument --compile-mode: {mode} records CUDA graphs, and this runs on a CPU: give "
        f"{others}{anyhow}"
    )


def _without_cuda(device: str) -> bool:
    """Whether ``--device`` certainly means a CPU; ``cuda`` without CUDA is refused elsewhere."""
    if device != "auto":
        return device == "cpu"
    torch = sys.modules.get("torch")
    if torch is not None:
        return not torch.cuda.is_available()
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False
