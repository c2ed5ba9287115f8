"""Every JSON file that is read back, with each of its values dropped or replaced: it loads, or one
error names the file."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.examples import EXAMPLES
from support.memory_points import points_of

import staticgraph as sg
from staticgraph import datasets
from staticgraph.errors import StoreCorrupt
from staticgraph.files import document
from staticgraph.files.versions import STEPS, versions
from staticgraph.memory.fit import TERMS, fit
from staticgraph.memory.memory_model import BatchBytes, MemoryModel, ResidentBytes
from staticgraph.outofcore import PartitionedGraph, partition
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.probe import probe_capacities
from staticgraph.runner import compile_cache, export_manifest, way_choice
from staticgraph.runner.export_manifest import ExportManifest
from staticgraph.runner.exported import verify_exported
from staticgraph.runner.report import BucketReport, Report

OTHERS = (None, [], {}, "a", -1, 1.5, [[]], ["a"])
MADE_FOR = {"torch": "2", "capacities": [[3, 4, 5]]}


def plan(folder: Path) -> tuple[Path, Callable[[], Any]]:
    store = datasets.open(EXAMPLES / "esol.npz")
    sg.plan_buckets(store, 32).save(folder / "plan.json")
    return folder / "plan.json", lambda: BucketPlan.load(folder / "plan.json")


def memory(folder: Path) -> tuple[Path, Callable[[], Any]]:
    capacities, _ = probe_capacities(np.array([[5, 8], [25, 54], [60, 130], [12, 26]]))
    points = points_of(TERMS["linear"], (1000.0, 7.0, 3.0, 2.0, 0.0), capacities)
    found = fit(points, "linear")
    resident = ResidentBytes(100, 100, 200, 0)
    model = MemoryModel(found, resident, BatchBytes(100, 9, 2, 1), points=tuple(points))
    model.save(folder / "memory.json")
    return folder / "memory.json", lambda: MemoryModel.load(folder / "memory.json")


def report(folder: Path) -> tuple[Path, Callable[[], Any]]:
    bucket = BucketReport(0, 9, 8, 3, 1, 0, 2, 0.9, 0.8, 0.7, 1, 0, 0, 0, 0.1, None, None)
    Report("m", "cpu", "eager", "as asked", None, (bucket,), (), {}).save(folder / "report.json")
    return folder / "report.json", lambda: Report.load(folder / "report.json")


def choices(folder: Path) -> tuple[Path, Callable[[], Any]]:
    made = way_choice.WayChoice(
        0, "step", "eager", "faster", (way_choice.Contender("eager", 3, 1.0),)
    )
    way_choice.save(folder / "choices.json", [made], MADE_FOR)
    return folder / "choices.json", lambda: way_choice.load(folder / "choices.json", MADE_FOR)


def store(folder: Path) -> tuple[Path, Callable[[], Any]]:
    datasets.open(EXAMPLES / "esol.npz").save(folder / "s")
    return folder / "s" / "manifest.json", lambda: sg.GraphStore.load(folder / "s", verify=False)


def graph(folder: Path) -> tuple[Path, Callable[[], Any]]:
    edges = np.random.default_rng(0).integers(0, 20, (2, 40))
    partition(edges, 20, 2, folder / "g")
    return folder / "g" / "manifest.json", lambda: PartitionedGraph(folder / "g")


def exported(folder: Path) -> tuple[Path, Callable[[], Any]]:
    given = sg.plan_buckets(datasets.open(EXAMPLES / "esol.npz"), 32)
    with zipfile.ZipFile(folder / "bucket-0.pt2", "w") as archive:
        archive.writestr("bucket-0/byteorder", "little")
    digest = export_manifest.digest_of((folder / "bucket-0.pt2").read_bytes())
    output = {"dict": [["a", "tensor"], ["b", {"tuple": ["tensor", {"value": 1}]}]]}
    made_by = (versions(STEPS), export_manifest.machine_of("cpu"))
    manifest = ExportManifest(given, (digest,), (("x",),), output, False, "cpu", "M", *made_by)
    manifest.save(folder)
    return folder / "export.json", lambda: verify_exported(folder)


MAKERS = (exported, plan, memory, report, choices, store, graph)


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document; of a list, only the first two items."""
    yield at
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = list(enumerate(value))[:2]
    for key, inner in items:
        yield from paths_in(inner, (*at, key))


def damaged(whole: Any) -> Iterator[tuple[str, Any]]:
    for path in paths_in(whole):
        if not path:
            yield from ((f"all {other!r}", other) for other in OTHERS)
            continue
        for other in (*OTHERS, "drop"):
            made = copy.deepcopy(whole)
            holder = made
            for key in path[:-1]:
                holder = holder[key]
            if other == "drop":
                del holder[path[-1]]
            else:
                holder[path[-1]] = other
            yield f"{path} {other!r}", made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_whatever_stands_in_a_document_it_loads_or_one_error_names_it(maker, tmp_path):
    path, load = maker(tmp_path)
    whole = json.loads(path.read_text())
    load()
    expected = StoreCorrupt if maker in (store, graph) else ValueError
    refused = []
    for what, made in damaged(whole):
        if isinstance(made, dict):  # with the right checksum, so that the values are read
            document.save(path, {k: v for k, v in made.items() if k != document.KEY})
        else:
            path.write_text(json.dumps(made))
        try:
            load()
        except expected as error:
            refused.append((what, str(error)))
        except Exception as error:
            pytest.fail(f"{what}: {type(error).__name__}: {error}")
    assert len(refused) > 20
    assert [what for what, said in refused if str(path.parent) not in said] == []


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
@pytest.mark.parametrize("text", ["[]", "3", "null", '"a"', "{", "", "[" * 10**5, "\x00\xff"])
def test_another_file_altogether(maker, text, tmp_path):
    path, load = maker(tmp_path)
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=path.name.replace(".", r"\.")):
        load()


@pytest.mark.parametrize("head", ["[]", "3", "null", '{"cold_s": []}', "{"])
def test_a_warm_start_made_by_something_else_is_not_used(tmp_path, head):
    path = tmp_path / "warm"
    path.write_bytes(compile_cache.MAGIC + head.encode() + b"\nrest")
    with pytest.warns(UserWarning, match="compiling again"):
        assert compile_cache.load(path, torch.device("cpu")) is None
