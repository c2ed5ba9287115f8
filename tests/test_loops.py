"""The five loops of ``docs/loops.md`` run as written, without warnings."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path

import pytest
from support.alike import same

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "loops.md").read_text()
BLOCKS = re.compile(r"(?:<!-- needs: (\w+) -->\n)?```python\n(.*?)```", re.DOTALL)
FIRST, *LOOPS = [(needs, code) for needs, code in BLOCKS.findall(TEXT)]
NAMES = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)[: len(LOOPS)]


def test_there_are_five():
    assert NAMES == ["A plain loop", "Accumulation", "Two optimizers", "accelerate", "Lightning"]


@pytest.mark.filterwarnings("error:.*batch of fixed shape", "error:.*cannot be told")
@pytest.mark.parametrize("number", range(len(LOOPS)), ids=NAMES)
def test_a_loop_runs_and_its_model_learns(number, monkeypatch):
    monkeypatch.chdir(ROOT)
    needs, code = LOOPS[number]
    if needs:
        pytest.importorskip(needs, reason=f"the extra {needs!r} is not installed")
    names = {"__name__": "loops"}
    exec(FIRST[1], names)
    first = copy.deepcopy(names["model"].state_dict())
    if NAMES[number] == "Accumulation":
        exec("optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)", names)
    exec(code, names)
    model = {
        "Two optimizers": lambda: names["generator"],
        "Lightning": lambda: names["trainer"].lightning_module.net,
    }.get(NAMES[number], lambda: names["model"])()
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    if NAMES[number] in ("A plain loop", "Accumulation", "accelerate"):
        assert not same(model.state_dict(), first)


def test_the_package_is_found_where_it_is_said():
    assert "pip install lightning" in TEXT
    assert importlib.util.find_spec("staticgraph.lightning") is not None
