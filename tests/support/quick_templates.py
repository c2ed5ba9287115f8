"""Makes PyG parse the templates of its convolutions only once.

PyG generates two modules per convolution class from two templates and parses them each time, which
takes 50 ms: a quarter of the time of quick tests over all layers.
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
    """Installs this in the current process and its forks."""
    importlib.import_module("torch_geometric.template").__dict__["Environment"] = _environment
