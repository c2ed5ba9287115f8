"""An exported model gives what the runner gives; nothing in a foreign or changed folder runs."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support.alike import assert_same_state
from support.examples import EXAMPLES
from support.patience import patience
from support.program import run_program
from support.serve_process import answer_of, serving, stopped

import staticgraph as sg
from staticgraph.files import document
from staticgraph.models import build
from staticgraph.runner import export_manifest
from staticgraph.runner.export import _Forward, _require_alike, form
from staticgraph.runner.export_manifest import ExportManifest
from staticgraph.runner.exported import ExportedModel, verify_exported

# Float32 through four layers, in the order that another compiler chose.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
NAME = "export.json"


def runner_of(kind: str) -> sg.StaticGraphRunner:
    store = sg.datasets.open(EXAMPLES / "esol.npz")
    torch.manual_seed(0)
    model = build(kind, store, hidden=8, layers=1)
    plan = sg.plan_buckets(store, batch_size=8)
    assert len(plan.capacities) == 1, "compiling one takes long enough"
    return sg.StaticGraphRunner(model, plan, mode="eager")


@pytest.fixture(scope="module")
def graphs():
    store = sg.datasets.open(EXAMPLES / "esol.npz")
    return store[:20]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder, its digest and the runner that wrote it."""
    folder, runner = tmp_path_factory.mktemp("exports") / "gps", runner_of("gps")
    runner.model.train()
    before = copy.deepcopy(runner.model.state_dict())
    digest = runner.export(folder, progress=False)
    assert runner.model.training, "nothing of the model has changed"
    assert_same_state(runner.model, before)
    return folder, digest, runner


@pytest.mark.slow
def test_an_exported_model_gives_what_the_runner_gives(exported, graphs):
    folder, digest, runner = exported
    model = sg.load_exported(folder, digest)
    expected = runner.predict(graphs)
    torch.testing.assert_close(model.predict(graphs), expected, **CLOSE)
    assert model.predict([]) == []
    with sg.Server(model, max_wait_ms=0) as server:
        futures = [server.submit([graph]) for graph in graphs]
        found = torch.cat([future.result(60) for future in futures])
    torch.testing.assert_close(found, expected, **CLOSE)
    other = sg.plan_buckets(sg.GraphStore.from_pyg(graphs), batch_size=4)
    batch = next(iter(sg.StaticLoader(sg.GraphStore.from_pyg(graphs), other)))
    with pytest.raises(sg.PlanMismatch, match="not one of this model's: use batches"):
        model.predict_batch(batch)


@pytest.mark.slow
def test_it_is_loaded_without_the_models_source(exported, tmp_path):
    """In a process that cannot import the model's source."""
    folder, digest, runner = exported
    script = f"""
import sys
for name in [n for n in sys.modules if n.split(".")[:2] == ["staticgraph", "models"]]:
    sys.modules[name] = None
sys.modules["staticgraph.models"] = None
import staticgraph as sg
store = sg.datasets.open({str(EXAMPLES / "esol.npz")!r})
print(sg.load_exported({str(folder)!r}, {digest!r}).predict([store[0]]).tolist())
"""
    done = run_program(["-c", script], timeout=patience(60))
    assert done.returncode == 0, done.stderr
    store = sg.datasets.open(EXAMPLES / "esol.npz")
    expected = runner.predict([store[0]])
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), expected, **CLOSE)


@pytest.mark.slow
def test_the_command_serves_what_was_compiled(exported, graphs):
    pytest.importorskip("fastapi", reason="needs the extra serve")
    folder, digest, runner = exported
    assert verify_exported(folder)[0].categories.keys() == {"x", "edge_attr"}
    with serving("--exported", str(folder), "--digest", digest) as (process, address, said):
        assert "Traceback" not in said
        assert "outputs only, no probabilities" in said
        names = ("x", "edge_index", "edge_attr")
        few = [{name: graph[name].tolist() for name in names} for graph in graphs[:4]]
        outputs = json.loads(answer_of(f"{address}/predict", {"graphs": few}))["outputs"]
        stopped(process)
    torch.testing.assert_close(torch.tensor(outputs), runner.predict(graphs[:4]), **CLOSE)


@pytest.mark.slow
def test_an_export_is_replaced_only_where_that_is_asked(exported, tmp_path):
    folder, _, runner = exported
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        runner.export(copy, progress=False)
    (copy / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine\.txt"):
        runner.export(copy, overwrite=True, progress=False)


# ---------------------------------------------------------------------- a folder of somebody else


def packed(path: Path, *names: str) -> bytes:
    """A zip archive that looks like a package."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"not code")
    return path.read_bytes()


GOOD = ("bucket-0/archive_format", "bucket-0/.data/version",
        "bucket-0/data/aotinductor/model/a.wrapper.so", "bucket-0/byteorder")  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder that is valid except for its package's code; its loader must not be reached."""
    content = packed(tmp_path / "bucket-0.pt2", *GOOD)
    runner = runner_of("gine")
    schema = runner.plan.schema
    assert schema is not None
    manifest = ExportManifest(
        runner.plan,
        (export_manifest.digest_of(content),),
        (("x",),),
        "tensor",
        False,
        "cpu",
        "GraphModel",
        export_manifest.versions(export_manifest.STEPS),
        export_manifest.machine_of("cpu"),
    )
    manifest.save(tmp_path)

    def ran(*_):
        raise AssertionError("a package was loaded")

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", ran)
    return tmp_path


def changed(folder: Path, **values) -> None:
    """Save the manifest with other values and a checksum that matches them."""
    found = document.load(folder / NAME)
    document.save(folder / NAME, {**found, **values})


def repacked(folder: Path, *names: str) -> None:
    """Replace the package by another, and list it in the manifest."""
    content = packed(folder / "bucket-0.pt2", *names)
    changed(folder, packages=[hashlib.sha256(content).hexdigest()])


def refused(folder: Path, words: str, digest: str | None = None) -> None:
    for look in (verify_exported, sg.load_exported):
        with pytest.raises(sg.errors.ExportRefused, match=words):
            look(folder, digest)


def test_a_folder_that_is_right_is_known(folder):
    manifest, _ = verify_exported(folder)
    assert manifest.digest == hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
    assert verify_exported(folder, manifest.digest)[0] == manifest
    with pytest.raises(AssertionError, match="was loaded"):
        sg.load_exported(folder, manifest.digest)


def test_a_changed_package_runs_nothing(folder):
    content = bytearray((folder / "bucket-0.pt2").read_bytes())
    content[40] ^= 1
    (folder / "bucket-0.pt2").write_bytes(content)
    refused(folder, "has the SHA-256")
    (folder / "bucket-0.pt2").unlink()
    refused(folder, "cannot be read")


def test_a_forged_manifest_runs_nothing_where_the_digest_is_known(folder):
    digest = verify_exported(folder)[0].digest
    repacked(folder, *GOOD, "bucket-0/data/aotinductor/model/evil.so")
    verify_exported(folder)  # consistent in itself
    refused(folder, "this is another export, or it was changed; nothing of it ran", digest)


@pytest.mark.parametrize(
    "name",
    [
        "../../evil.so",
        "/tmp/evil.so",
        "bucket-0/data/aotinductor/model/../../../../evil.so",
        "bucket-0/data/aotinductor/model\\..\\evil.so",
        "bucket-0/models/model.json",
        "bucket-0/data/weights/weight_0.pkl",
        "bucket-0/data/aotinductor/model/a.pkl",
        "bucket-0/data/aotinductor/other/a.so",
        "evil.so",
    ],
)
def test_an_entry_that_no_package_has_runs_nothing(folder, name):
    repacked(folder, *GOOD, name)
    refused(folder, "which no package of AOTInductor has")


def read_first(monkeypatch, name: str, content: bytes) -> None:
    """Simulate a folder that changes while it is checked: the first read of a file returns
    ``content``, later reads what is on disk."""
    read, first = Path.read_bytes, [content]
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: first.pop() if path.name == name and first else read(path)
    )


def test_a_manifest_that_is_exchanged_meanwhile_runs_nothing(folder, monkeypatch):
    digest, good = verify_exported(folder)[0].digest, (folder / NAME).read_bytes()
    changed(folder, model="another")
    forged = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(good)
    read_first(monkeypatch, NAME, forged)
    with pytest.raises(sg.errors.ExportRefused, match="this is another export"):
        sg.load_exported(folder, digest)


def test_a_package_that_is_exchanged_meanwhile_runs_nothing(folder, monkeypatch):
    good = (folder / "bucket-0.pt2").read_bytes()
    repacked(folder, *GOOD, "../../evil.so")
    evil = (folder / "bucket-0.pt2").read_bytes()
    (folder / "bucket-0.pt2").write_bytes(good)
    read_first(monkeypatch, "bucket-0.pt2", evil)
    with pytest.raises(sg.errors.ExportRefused, match="which no package of AOTInductor has"):
        sg.load_exported(folder)


def test_a_pipe_in_place_of_a_package_is_not_waited_for(folder):
    (folder / "bucket-0.pt2").unlink()
    os.mkfifo(folder / "bucket-0.pt2")
    refused(folder, "cannot be read")


def test_no_package_at_all(folder):
    (folder / "bucket-0.pt2").write_bytes(b"\x80\x04pickle")
    changed(folder, packages=[hashlib.sha256(b"\x80\x04pickle").hexdigest()])
    refused(folder, "is not a package")


MACHINE = export_manifest.machine_of("cpu")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"format": "a store"}, "not an exported model of version 1"),
        ({"version": 2}, "export it again"),
        ({"packages": []}, "one package a bucket"),
        ({"packages": [5]}, "5 where a text should be"),
        ({"output": {"set": ["tensor"]}}, "collected in 'set'"),
        ({"packages": ["a", "b"]}, "one package a bucket"),
        ({"plan": {}}, "not a plan"),
        ({"inputs": 5}, "export.json"),
        ({"versions": {"torch": "1.0.0"}}, "exported with torch 1.0.0, and here is torch"),
        ({"device": "tpu"}, "use cpu or cuda"),
        ({"machine": {"arch": "pdp11"}}, "compiled for pdp11"),
        (
            {"machine": {**MACHINE, "instructions": [*MACHINE["instructions"], "avx9999"]}},
            "a processor with avx9999, which this one lacks",
        ),
        pytest.param(
            {"device": "cuda"},
            "torch finds no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU"),
        ),
    ],
)
def test_a_manifest_of_something_else_is_one_line(folder, values, words):
    changed(folder, **values)
    refused(folder, words)


def test_a_damaged_manifest_is_one_line(folder):
    with pytest.raises(FileNotFoundError, match=r"runner\.export"):
        sg.load_exported(folder / "elsewhere")
    text = (folder / NAME).read_text()
    (folder / NAME).write_text(text.replace('"GraphModel"', '"Other"'))
    refused(folder, "checksum")
    (folder / NAME).write_text(text[:200])
    refused(folder, "no readable JSON")


def test_a_package_gives_tensors_and_the_manifest_the_rest():
    a, b = torch.zeros(2), torch.ones(3)
    out = {"none": None, "a": a, "k": 7, "words": "x", "b": (None, [b, 1.5], a), "yes": True}
    packed = _Forward(torch.nn.Identity(), lambda *_: out)(a)
    assert [id(tensor) for tensor in packed] == [id(a), id(b), id(a)]

    class Package:
        def run(self, _):
            return [None, *packed]  # as from packages written with None among the tensors

    batch = Mock(bucket=0, capacity=sg.Capacity(3, 4, 2))
    batch.tensors.return_value = {"x": a}
    model = object.__new__(ExportedModel)
    model.manifest = Mock(plan=sg.BucketPlan.of([batch.capacity]), inputs=[("x",)])
    model.manifest.output, model._loaders = form(out), [Package()]
    assert model.predict_batch(batch) == out


def test_an_output_that_depends_on_the_bucket_is_refused():
    forms = [{"tuple": ["tensor", {"value": n}]} for n in (8, 8, 9)]
    _require_alike(forms[:2], torch.nn.Identity())
    with pytest.raises(sg.NotStatic, match=r"'value': 8.* in the first bucket and .*'value': 9"):
        _require_alike(forms, torch.nn.Identity())


@pytest.mark.slow
@pytest.mark.release
def test_a_model_that_divides_by_the_number_of_graphs_is_exported_over_graphs(graphs, tmp_path):
    store = sg.GraphStore.from_pyg(graphs)
    model = torch.nn.Linear(9, 2)

    def forward(model, batch):
        return model(batch.x.float()) * (1 + 10 % batch.num_real_graphs)

    plan = sg.plan_buckets(store, batch_size=4)
    runner = sg.StaticGraphRunner(model, plan, "eager", forward=forward)
    runner.export(tmp_path / "linear", progress=False)  # the plan knows its graphs
    answers = sg.load_exported(tmp_path / "linear").predict(graphs)
    torch.testing.assert_close(answers, runner.predict(graphs))


def test_an_export_needs_the_fields():
    runner = sg.StaticGraphRunner(torch.nn.Linear(1, 1), [(9, 20, 3)], mode="eager")
    with pytest.raises(ValueError, match=r"export\(folder, example=store\)"):
        runner.export("nowhere")
    assert not Path("nowhere").exists()
