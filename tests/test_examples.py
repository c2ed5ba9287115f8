"""The scripts of ``examples/`` run on small data, learn something, and are short."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

import staticgraph as sg

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 88

# Arguments of a short and of a longer training; the longer one must have the smaller loss.
SMALL = {
    "molecules": {"model": "gine", "molecules": 128, "width": 16},
    "forces": {"crystals": 48, "width": 8, "steps": 2},
    "typed": {"molecules": 128, "width": 8},
    "branching": {"programs": 64, "width": 16},
    "virtual_node": {"molecules": 96, "width": 16},
    "own_layer": {"molecules": 128, "width": 8},
    "traffic": {"windows": 128, "width": 16},
    "with_lightning": {"molecules": 128, "width": 8},
}


@pytest.fixture(autouse=True)
def _modules():
    before = set(sys.modules)
    yield
    for name in {path.stem for path in SCRIPTS} & (set(sys.modules) - before):
        del sys.modules[name]


def example(name):
    if name == "with_lightning":
        pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
    if name == "forces":
        pytest.importorskip("ase", reason="the extra 'atoms' is not installed")
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # PyG's layers read their own module's source
    spec.loader.exec_module(module)
    return module


# The ways of computing that a script chooses between are timed for every fifth of these.
AS_THEY_ARE = (
    *("own_layer", "virtual_node", "molecules with attention"),
    *("molecules", "traffic", "branching"),
    *("with_lightning", "typed", "forces"),
)
UNKNOWN = "error:.*outside of any forward that knows it:UserWarning"


def in_eager(monkeypatch) -> None:
    """Lets scripts compute in one way, without timing the others."""
    eager = functools.partial(sg.StaticGraphRunner, mode="eager")
    monkeypatch.setattr(sg, "StaticGraphRunner", eager)


@pytest.mark.filterwarnings(UNKNOWN)
@pytest.mark.parametrize("name", sorted(SMALL.keys() - {"own_layer"}))
def test_a_script_learns(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    in_eager(monkeypatch)
    main = example(name).main
    assert main(epochs=4, **SMALL[name]) < main(epochs=1, **SMALL[name])


@pytest.mark.filterwarnings(UNKNOWN)
def test_the_layer_of_ones_own_learns_by_its_steps(monkeypatch):
    """Its last batch happens to be an easier one each epoch, with steps of length 0 too."""
    monkeypatch.chdir(ROOT)
    in_eager(monkeypatch)
    main = example("own_layer").main
    learned = main(epochs=4, **SMALL["own_layer"])
    adam = torch.optim.Adam
    monkeypatch.setattr(torch.optim, "Adam", lambda params, lr: adam(params, lr=0.0))
    assert learned < 0.9 * main(epochs=4, **SMALL["own_layer"])


@pytest.mark.filterwarnings(UNKNOWN)
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_a_script_runs_as_it_is(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    name, _, attends = name.partition(" ")
    options = SMALL[name] | ({"model": "gps"} if attends else {})
    assert example(name).main(epochs=1, **options) > 0


def test_a_graph_larger_than_memory(monkeypatch, tmp_path):
    """There are seven classes: chance is one in seven; five seeds gave 0.49 to 0.66."""
    monkeypatch.chdir(ROOT)
    assert example("out_of_core").main(8, 4, epochs=8, folder=str(tmp_path)) > 0.4


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_what_it_is(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MOST_LINES, "say it in fewer lines"
    assert text.startswith('"""')
