"""Draws the picture of a training run only for tests that look at it.

Drawing takes half a second, as long as a test's training run, and a hundred tests train. For all
others, one grey pixel replaces it.
"""

from __future__ import annotations

from base64 import b64decode
from types import SimpleNamespace

import pytest

from staticgraph.training import plots

POINT = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


@pytest.fixture
def painted() -> None:
    """Requested by a test that looks at pictures of training."""


@pytest.fixture(autouse=True)
def _a_point_for_a_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    point = SimpleNamespace(savefig=lambda file, **_: file.write(POINT))
    if "painted" not in request.fixturenames:
        monkeypatch.setattr(plots, "draw_run", lambda *_: point)
