"""How many examples a property is tested on.

A fifth of what a test asks for by default, since the same examples are drawn each time and most of
them are alike; all of them with ``EVERY_CASE=1``, as for :mod:`support.sampled`.
"""

from __future__ import annotations

import os

from hypothesis import settings


def examples(count: int) -> settings:
    """A decorator: draws ``count`` examples, or a fifth of them (at least 8) by default."""
    drawn = count if os.environ.get("EVERY_CASE") else min(count, max(8, count // 5))
    return settings(max_examples=drawn, deadline=None)
