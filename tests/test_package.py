"""What gets installed: extras that cover every import, one version, and a wheel that trains where
there is no source tree."""

from __future__ import annotations

import ast
import re
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
from packaging.specifiers import SpecifierSet
from packaging.version import Version

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
TEXTS = [
    path
    for folder in (".", "docs", "examples", "staticgraph", "bench")
    for pattern in ("*.md", "*.py")
    for path in ((ROOT / folder).glob(pattern) if folder == "." else (ROOT / folder).rglob(pattern))
]


def names(requirements: list[str]) -> set[str]:
    """The import names of the packages in a list of requirements."""
    return {Requirement(each).name.replace("-", "_") for each in requirements}


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


def test_every_extra_that_is_named_anywhere_exists():
    said: dict[str, str] = {}
    for path in TEXTS:
        text = path.read_text()
        for listed in re.findall(r"staticgraph\[([\w, -]+)\]", text):
            said |= {extra.strip(): path.name for extra in listed.split(",")}
        for extra in re.findall(r"\bextra [`'\"]+(\w+)", text):
            said[extra] = path.name
    assert len(said) >= 3
    assert {extra: where for extra, where in said.items() if extra not in EXTRAS} == {}


def test_developers_have_every_extra_that_tests_need():
    own = next(each for each in EXTRAS["dev"] if each.startswith("staticgraph"))
    # ogb pins packages from years ago; its reader is tested with a stand-in.
    assert Requirement(own).extras == set(EXTRAS) - {"dev", "ogb", "docs"}


def test_the_pinned_versions_are_those_that_are_asked_for():
    """The versions that `make` installs lie within those a user may install."""
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    pinned = {name.lower().replace("-", "_"): version for name, version in pinned.items()}
    for listed in (METADATA["dependencies"], *EXTRAS.values()):
        for requirement in map(Requirement, listed):
            name = requirement.name.lower().replace("-", "_")
            if name in pinned:
                assert requirement.specifier.contains(pinned[name]), f"{requirement} {pinned[name]}"
    assert names(METADATA["dependencies"]) <= set(pinned)


def test_classifiers_name_the_pythons_that_are_allowed():
    said = {
        found[1]
        for each in METADATA["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))
    }
    allowed = SpecifierSet(METADATA["requires-python"])
    assert said == {f"3.{minor}" for minor in range(8, 30) if allowed.contains(f"3.{minor}.5")}
    assert "Typing :: Typed" in METADATA["classifiers"]
    assert not any(each.startswith("License ::") for each in METADATA["classifiers"]), (
        "a license is"
    )
    assert METADATA["license"] == "MIT"


def seen_to_run() -> list[dict[str, str]]:
    """The table in docs/versions.md, one row per run."""
    lines = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in (ROOT / "docs" / "versions.md").read_text().splitlines()
        if line.startswith("|")
    ]
    head, _, *rows = lines
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("name", "column"), [("torch", "torch"), ("torch_geometric", "PyG"), ("python", "Python")]
)
def test_versions_that_are_allowed_are_those_that_were_run(name, column):
    """The oldest and the newest version a user may install are both in docs/versions.md."""
    ran = [Version(row[column]) for row in seen_to_run()]
    wanted = [Requirement(each) for each in METADATA["dependencies"]]
    found = [each.specifier for each in wanted if each.name == name]
    (allowed,) = found or [SpecifierSet(METADATA["requires-python"])]
    oldest, newest = min(ran), max(ran)
    assert all(allowed.contains(version) for version in ran)
    assert not allowed.contains(f"{oldest.major}.{oldest.minor - 1}.9")
    assert not allowed.contains(f"{newest.major}.{newest.minor + 1}.0")


def span(column: str) -> str:
    """``X to Y``, without the patch level: the oldest and newest version of a column that ran."""
    ran = {Version(row[column]).release[:2] for row in seen_to_run()}
    ends = [f"{major}.{minor}" for major, minor in (min(ran), max(ran))]
    return " to ".join(dict.fromkeys(ends))


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_a_page_that_names_versions_names_those_that_were_run(page):
    said = f"Python {span('Python')}, torch {span('torch')}, PyG {span('PyG')} ([what was run]("
    assert said in " ".join((ROOT / page).read_text().split())


def test_what_was_skipped_was_not_run():
    """A version is either in the table or in the list of skipped versions, not in both."""
    text = (ROOT / "docs" / "versions.md").read_text()
    listed = text.partition("## What was skipped")[2].partition("\n## ")[0]
    for column, name in (("Python", "Python"), ("torch", "torch"), ("PyG", "PyG")):
        ran = {".".join(row[column].split(".")[:2]) for row in seen_to_run()}
        skipped = {
            version
            for each in re.findall(rf"^- \*\*{name} ([\d., and]+)\*\*", listed, re.MULTILINE)
            for version in re.findall(r"\d+\.\d+", each)
        }
        assert skipped.isdisjoint(ran)


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
