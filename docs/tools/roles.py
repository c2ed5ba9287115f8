"""Sphinx's roles in docstrings, as the site shows them: ``:class:`sg.X``` is code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Takes the role away and leaves the name; of a module of this library without its package."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each class, function and module that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
