"""Private APIs of torch: none is used outside ``internals/``, and each name does what it is used
for. With a new torch, failures here and in the ``test_internals_*`` files (tracing,
Inductor, hooks) show what changed."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import staticgraph
from staticgraph.internals.memory import keep_freed_memory

ROOT = Path(staticgraph.__file__).parent
ROOMS = ("internals", "dryrun/stubs")
PRIVATE = re.compile(r"^torch(\.\w+)*\._[a-z]\w*|^torch\._[A-Z]\w*")


def private_names(source: str) -> list[tuple[int, str]]:
    """Lines and names of private torch APIs, imported or reached by attribute access."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            names = [ast.unparse(node)]
            if node.attr == "_version":
                names.append("torch._version")
        else:
            continue
        found += [(node.lineno, name) for name in names if PRIVATE.match(name)]
    return found


def test_private_names_of_torch_stand_in_their_rooms():
    files = [p for p in ROOT.rglob("*.py") if not str(p.relative_to(ROOT)).startswith(ROOMS)]
    assert len(files) > 300
    found = [
        f"{path}:{line} says {name}: it belongs in internals/"
        for path in files
        for line, name in private_names(path.read_text())
    ]
    assert found == []


STEPS = """
import resource, torch, staticgraph as sg
from torch_geometric.data import Data
class Net(torch.nn.Linear):
    def forward(self, x):
        kept = [torch.ones(1 << 18) for _ in range(200)] + [torch.ones(10 << 20)]
        return super().forward(x)
graphs = [Data(x=torch.ones(3, 1), edge_index=torch.zeros(2, 0).long()) for _ in range(2)]
runner = sg.StaticGraphRunner(Net(1, 1), sg.plan_stream(graphs, batch_size=2), mode="eager")
faults = []
for _ in range(9):  # the heap may grow in some
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    runner.predict(graphs)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


def test_a_cpu_runner_keeps_what_a_step_frees(monkeypatch):
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}  # and no variables for malloc
    run = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, env=path)
    assert int(run.stdout) < 999, run.stderr  # of 61,440 pages
    # Whether glibc trims its heap depends on what stands at its end, too: the bound is asked for.
    set_up = {}
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(ctypes, "PyDLL", lambda _: SimpleNamespace(mallopt=set_up.__setitem__))
    keep_freed_memory.__wrapped__()
    assert set_up == {-1: (1 << 31) - 1, -3: 32 << 20}
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert keep_freed_memory.__wrapped__() is None  # malloc is the user's to set up
