"""PyG writes two modules for each class of its convolutions, from two templates, and parses them
each time, for 50 ms: a quarter of what quick tests over all layers take. Here it parses them once.
"""

from __future__ import annotations

import importlib
from functools import cache

from jinja2 import Environment, FileSystemLoader


@cache
def _of_folder(folder: str) -> Environment:
    return Environment(loader=FileSystemLoader(folder))


def _environment(loader: FileSystemLoader) -> Environment:
    return _of_folder(loader.searchpath[0])


def begin() -> None:
    """From now on, in this process and in those that fork from it."""
    importlib.import_module("torch_geometric.template").__dict__["Environment"] = _environment
