"""Shows Sphinx roles in docstrings as code on the site, such as ``:class:`sg.X```."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Replaces each role in a docstring with its name as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each class, function and module that griffe has read."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
