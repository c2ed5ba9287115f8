"""AOTInductor's packages: a compiled model in a file, and its loader."""

from __future__ import annotations

from typing import Any

import torch


def compile_and_package(program: Any, **options: Any) -> str:
    """Writes what ``torch.export`` gave as a package; see ``torch._inductor``."""
    from torch._inductor import aoti_compile_and_package

    return aoti_compile_and_package(program, **options)


def package_loader() -> Any:
    """The loader of packages. Not ``aoti_load_package``: that also reads programs which a package
    may hold."""
    return torch._C._aoti.AOTIModelPackageLoader  # pyright: ignore[reportAttributeAccessIssue]
