"""Whether a mode can run on a device, asked before torch is imported where that is enough."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata

from staticgraph.steps.compilation.modes import CUDA_MODES


def check_mode(
    args: argparse.Namespace, mode: str, device: str, allow_cpu: bool | None = None
) -> None:
    """Ends with a usage error where a mode records CUDA graphs and there is no CUDA, as far as is
    known: before torch is imported by the device that was asked for and the wheel of torch.

    Args:
        args: of the command.
        mode: the compile mode.
        device: as ``--device`` has it.
        allow_cpu: whether it may run without recording; None where the command has no such option.
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
    """Whether ``--device`` certainly leads to a CPU; ``cuda`` itself is refused elsewhere."""
    if device != "auto":
        return device == "cpu"
    torch = sys.modules.get("torch")
    if torch is not None:
        return not torch.cuda.is_available()
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False
