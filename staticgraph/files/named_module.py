"""Finds the module of ``module:name`` before anything slow is imported.

A module in the current folder is found, as with ``python -m``. Only the top-level package is looked
up, since finding a module inside a package would import the package.
"""

from __future__ import annotations

import importlib.util
import os
import sys


def require_module(spec: str, option: str) -> tuple[str, str]:
    """Splits a spec into module and name, and checks that the module exists.

    Args:
        spec: ``module:name``.
        option: the command-line option that it was given to, such as ``--model``, for messages.

    Raises:
        ValueError: if it does not have that form, or there is no such module.
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
    """Returns the error for a module that does not exist."""
    module, _, name = spec.partition(":")
    return ValueError(
        f"{option} {spec}: there is no module {module!r} here"
        + (_instead(module, name) or f" (looked in {os.getcwd()}, and among what is installed)")
    )


def _instead(path: str, name: str) -> str:
    """Returns the end of a message that suggests a module name, if a file path was given."""
    folder, file = os.path.split(os.path.relpath(os.path.expanduser(path)))
    stem = file.removesuffix(".py")
    if not stem.isidentifier() or path == stem:
        return ""
    parts = [*folder.split(os.sep), stem] if folder else [stem]
    if all(part.isidentifier() for part in parts):
        return f": write {'.'.join(parts)}:{name}"
    return f": write {stem}:{name}, with PYTHONPATH={folder}"
