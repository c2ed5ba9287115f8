"""The scripts of ``examples/peers/`` run real packages in fixed shapes and compare with them.

They need packages that this project does not depend on: ``make`` a virtual environment with
``examples/peers/requirements.txt``, and name its Python in ``STATICGRAPH_PEERS``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "peers").glob("*.py"))
PACKAGES = {
    "alignn_line_graphs": "alignn",
    "chemprop_bonds": "chemprop",
    "mace_energy_forces": "mace",
    "schnetpack_energy_forces": "schnetpack",
    "torchmdnet_energy_forces": "torchmdnet",
}
PYTHON = os.environ.get("STATICGRAPH_PEERS", sys.executable)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_peer_changes_at_most_ten_lines(script):
    assert len(re.findall(r"# \+$", script.read_text(), re.MULTILINE)) <= 10


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_peers_losses_gradients_and_forces_are_its_own(script):
    package = PACKAGES[script.stem]
    find = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    if subprocess.run([PYTHON, "-c", find], check=False).returncode:
        pytest.skip(f"{package} is not installed: examples/peers/requirements.txt")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [PYTHON, "-W", "ignore", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "equal;" in done.stdout
