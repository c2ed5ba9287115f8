"""Inductor, its graph trees and its generated code; imported on first use, since that takes
seconds.

AOTInductor packages: a compiled model in a file, and its loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

# On a CPU, loops that are joined because they run over as many rows may read a sum before rows are
# added to it (torch 2.13). So loops are joined only where one reads another's values.
_SOUND = {"cpp.max_horizontal_fusion_size": 1}


def compile_and_package(program: Any, **options: Any) -> str:
    """Compiles an exported program and writes it as a package; see ``torch._inductor``."""
    from torch._inductor import aoti_compile_and_package

    return aoti_compile_and_package(program, inductor_configs=_SOUND, **options)


def package_loader() -> Any:
    """Returns the loader class of packages.

    ``aoti_load_package`` is avoided because it also reads programs that a package may contain.
    """
    return torch._C._aoti.AOTIModelPackageLoader  # pyright: ignore[reportAttributeAccessIssue]


def inductor(mode: str | None) -> Callable[..., Any]:
    """Returns the compiler of ``torch.compile(mode=...)``: it takes a graph and example inputs and
    returns a callable."""
    return torch._TorchCompileInductorWrapper(mode, _SOUND, False)


def declare_operators(namespace: str) -> None:
    """Tells Inductor that the operators of a namespace are called as they are.

    It finds that by itself. But torch 2.11 and 2.12, when they meet an operator for the first time,
    write out all that its operands were computed from, in a time that doubles with every layer.
    """
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith(f"{namespace}::"):
            continue
        operator = getattr(getattr(torch.ops, namespace), name.partition("::")[2]).default
        if operator not in lowering.lowerings:
            tag = get_layout_constraint_tag(operator, with_default=True)
            constraint = lowering.tag_to_layout_constraint(tag)
            lowering.make_fallback(operator, constraint, warn=False)


def roots_of_trees(device_index: int) -> list[Any]:
    """Returns the first recordings of torch's graph trees on a device.

    Each node's ``children`` has lists of the recordings that follow it.
    """
    from torch._inductor.cudagraph_trees import get_manager

    manager = get_manager(device_index, create_if_none_exists=False)
    return [] if manager is None else [root for roots in manager.roots.values() for root in roots]


def drop_trees() -> None:
    """Frees the recordings of torch's graph trees; ``torch.compiler.reset()`` calls it, among other
    things."""
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees

    reset_cudagraph_trees()


@dataclass(slots=True)
class Pieces:
    """Number of graph pieces that torch prepared for recording."""

    count: int = 0


@contextmanager
def counting_pieces() -> Iterator[Pieces]:
    """Counts, inside the block, the graph pieces that torch passes to its recorder."""
    from torch._inductor import compile_fx

    make, pieces = compile_fx.cudagraphify, Pieces()

    def counted(*args: Any, **kwargs: Any) -> Any:
        """Counts a piece, then prepares it as torch does."""
        pieces.count += 1
        return make(*args, **kwargs)

    compile_fx.cudagraphify = counted
    try:
        yield pieces
    finally:
        compile_fx.cudagraphify = make


def generated_module(source: str) -> Any:
    """Loads the module of a source that Inductor generated."""
    from torch._inductor.codecache import PyCodeCache

    return PyCodeCache.load(source)


def use_torchs_assembler() -> None:
    """Lets Triton use the ``ptxas`` of torch's CUDA builds, as Inductor does once it compiles: one
    that is older refuses what Triton's cache keeps from it."""
    from torch._inductor.runtime import compile_tasks

    compile_tasks._set_triton_ptxas_path()
