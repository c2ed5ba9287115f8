"""The module of ``module:name``, looked for before anything slow is imported.

A module of the present folder is found, as ``python -m`` finds it. Only its outermost package is
looked for: to find a module inside of a package, Python imports the package.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def require_module(spec: str, option: str) -> tuple[str, str]:
    """The module and the name.

    Args:
        spec: ``module:name``.
        option: what it was given to, such as ``--model``, for messages.

    Raises:
        ValueError: it is not of that form, or there is no such module.
    """
    module, _, name = spec.partition(":")
    if not (module and name):
        raise ValueError(f"{option} {spec}: expected MODULE:NAME, such as mymodule:build")
    if not all(part.isidentifier() for part in module.split(".")):
        raise ValueError(
            f"{option} {spec}: {module!r} is not a module name{_instead(module, name)}"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    outermost = module.partition(".")[0]
    if outermost not in sys.modules and importlib.util.find_spec(outermost) is None:
        raise no_module(spec, option)
    return module, name


def no_module(spec: str, option: str) -> ValueError:
    """The error for a module that is not there."""
    module, _, name = spec.partition(":")
    return ValueError(
        f"{option} {spec}: there is no module {module!r} here"
        + (_instead(module, name) or f" (looked in {os.getcwd()}, and among what is installed)")
    )


def _instead(path: str, name: str) -> str:
    """What to write instead of a path of a file, as the end of a message."""
    folder, file = os.path.split(os.path.relpath(os.path.expanduser(path)))
    stem = file.removesuffix(".py")
    if not stem.isidentifier() or path == stem:
        return ""
    parts = [*folder.split(os.sep), stem] if folder else [stem]
    if all(part.isidentifier() for part in parts):
        return f": write {'.'.join(parts)}:{name}"
    return f": write {stem}:{name}, with PYTHONPATH={folder}"
