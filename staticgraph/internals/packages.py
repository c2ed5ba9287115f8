"""AOTInductor packages: a compiled model in a file, and its loader."""

from __future__ import annotations

from typing import Any

import torch


def compile_and_package(program: Any, **options: Any) -> str:
    """Compiles an exported program and writes it as a package; see ``torch._inductor``."""
    from torch._inductor import aoti_compile_and_package

    return aoti_compile_and_package(program, **options)


def package_loader() -> Any:
    """Returns the loader class of packages.

    ``aoti_load_package`` is avoided because it also reads programs that a package may contain.
    """
    return torch._C._aoti.AOTIModelPackageLoader  # pyright: ignore[reportAttributeAccessIssue]
