"""What gets installed: extras that cover every import, one version, and a wheel that trains where
there is no source tree."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import staticgraph as sg
from staticgraph.cli import main

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
METADATA = PROJECT["project"]
EXTRAS: dict[str, list[str]] = METADATA["optional-dependencies"]
# Extras for developers: nothing in the library imports these packages.
TOOLS = ("dev", "docs")
# A wheel is built from these and nothing else in the repository.
SOURCES = ("staticgraph", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


def names(requirements: list[str]) -> set[str]:
    """The import names of the packages in a list of requirements."""
    found = {Requirement(each).name.replace("-", "_") for each in requirements}
    return {name.removesuffix("_atomistic") for name in found}  # torch-sim-atomistic


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
            if node.module.startswith("torch.utils.tensorboard"):
                yield "tensorboard"


# ---------------------------------------------------------------------- what pyproject says


def test_every_import_is_covered_by_a_dependency_or_an_extra():
    """Every package imported anywhere is required, and every required package is imported."""
    needed = {name for path in (ROOT / "staticgraph").rglob("*.py") for name in imported(path)}
    # numba depends on llvmlite, whose types numba extensions use.
    needed -= {*sys.stdlib_module_names, "staticgraph", "llvmlite"}
    users = {extra: names(listed) for extra, listed in EXTRAS.items() if extra not in TOOLS}
    offered = names(METADATA["dependencies"]).union(*users.values())
    assert needed - offered == set(), "imported, and neither a dependency nor in an extra"
    # uvicorn uses these if they are installed.
    assert offered - needed == {"httptools", "uvloop"}, "asked for, and never imported"


def test_the_version_stands_in_one_place(capsys):
    assert "version" in METADATA["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "staticgraph.__version__"
    }
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"staticgraph {sg.__version__}\n"


# ---------------------------------------------------------------------- what is built from it

BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""
TRAINS = """
import sys
import torch
import staticgraph as sg
from staticgraph.models import build

store = sg.datasets.open("esol")
plan = sg.plan_buckets(store, batch_size=64)
train = store.splits["train"][:128]
loader = sg.StaticLoader(store, plan, indices=train, shuffle=True, seed=0)
torch.manual_seed(0)
model = build("gine", store, hidden=16, layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loss = lambda out, batch: (out - batch.y).square()
runner = sg.StaticGraphRunner(model, plan, mode="eager", loss=loss, optimizer=optimizer)
means = [sum(float(runner.step(batch)) for batch in loader) for _ in range(4)]
assert means[-1] < means[0], means
print(sg.__file__, sg.__version__, *sys.path)
"""


def run(*command: str | Path, cwd: Path, site: Path | None = None) -> str:
    """Runs a command and returns the last line of its output."""
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(cwd)}
    if site is not None:
        # Loops run as plain Python: compiling them takes longest and is tested elsewhere.
        environment |= {"PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, env=environment, cwd=cwd
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the source distribution alone, as ``python -m build`` does."""
    pytest.importorskip("setuptools", minversion=str(77))
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(ROOT / name, source / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, source / name)
    sdist = folder / run(sys.executable, "-c", BUILD, "sdist", folder, cwd=source)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return folder / run(sys.executable, "-c", BUILD, "wheel", folder, cwd=unpacked)


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = archive.read(f"staticgraph-{sg.__version__}.dist-info/METADATA").decode()
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "staticgraph").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in held if ".dist-info/" not in name} == ours
    assert "staticgraph/py.typed" in ours
    assert f"Version: {sg.__version__}" in metadata
    assert "License-Expression: MIT" in metadata


@pytest.mark.slow
def test_an_installed_wheel_trains_outside_the_source_tree(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "--no-compile", "--target", site, wheel], check=True, cwd=elsewhere)
    found, version, *path = run(sys.executable, "-c", TRAINS, cwd=elsewhere, site=site).split()
    assert Path(found).is_relative_to(site)
    assert version == sg.__version__
    assert str(ROOT) not in path
    said = run(sys.executable, site / "bin" / "staticgraph", "--version", cwd=elsewhere, site=site)
    assert said == f"staticgraph {sg.__version__}"
