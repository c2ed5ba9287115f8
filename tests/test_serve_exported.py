"""An exported folder over HTTP: its model's answers, and a message for what an export lacks."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.command import refusal
from support.examples import EXAMPLES

import staticgraph as sg
from staticgraph.cli import serve
from staticgraph.models import build
from staticgraph.runner.export_manifest import ExportManifest, categories_of

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("rdkit", reason="needs the extra smiles")
testclient = pytest.importorskip("starlette.testclient", reason="needs starlette's test client")

from support.request_bodies import JSON, SMILES, graph_of  # noqa: E402
from support.served_app import app_of  # noqa: E402

from staticgraph.serving import service as services  # noqa: E402
from staticgraph.serving.service import Limits, service_of_export  # noqa: E402

MANIFEST = {"versions": {}, "machine": {}, "output": "tensor", "pointers": False, "device": "cpu"}


def runner_of(graphs: int = 8) -> sg.StaticGraphRunner:
    store = sg.datasets.open(EXAMPLES / "esol.npz")
    torch.manual_seed(0)
    plan = sg.plan_buckets(store, batch_size=graphs)
    return sg.StaticGraphRunner(build("gine", store, hidden=8, layers=1), plan, mode="eager")


class Loaded:
    """The result of ``load_exported`` with a runner in place of compiled code: compiling takes half
    a minute, and only the code around it is tested here."""

    def __init__(self, runner: sg.StaticGraphRunner, categories: dict) -> None:
        self.runner, self.plan = runner, runner.plan
        self.device, self.pointers = runner.device, runner.pointers
        self.schema = runner.plan.schema
        packages = ("0" * 64,) * len(self.plan.capacities)
        self.manifest = ExportManifest(
            self.plan, packages, ((),), model="GraphModel", categories=categories, **MANIFEST
        )
        self.predict, self.predict_batch = runner.predict, runner.predict_batch


@pytest.fixture
def loaded(monkeypatch):
    runner = runner_of()
    known = categories_of(runner.model.state_dict(), runner.plan.schema)
    found, asked = Loaded(runner, known), []

    def load(folder, digest=None):
        asked.append((folder.name, digest))
        return found

    monkeypatch.setattr(services, "load_exported", load)
    found.asked = asked
    return found


def test_graphs_and_smiles_get_the_answers_of_the_model(loaded, tmp_path):
    options = {"digest": "ab", "smiles": True, "task": "binary"}
    app = app_of(service_of_export(tmp_path / "hiv", **options))
    graphs = [graph_of(smiles) for smiles in SMILES]
    with testclient.TestClient(app) as client:
        answers = [
            client.post("/predict", json=b) for b in ({"smiles": SMILES}, {"graphs": graphs})
        ]
        assert "GraphModel of hiv" in client.get("/").text
        assert '<input id="smiles"' in client.get("/").text
        assert client.get("/health").json() == {"status": "ok"}
        assert 'staticgraph_requests_total{end="answered"} 2.0' in client.get("/metrics").text
    assert loaded.asked == [("hiv", "ab")]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        found = np.array(answer.json()["outputs"])
        np.testing.assert_allclose(answer.json()["probabilities"], 1 / (1 + np.exp(-found)))
    assert answers[0].json() == answers[1].json()
    assert len(found) == len(SMILES)


def test_the_limits_and_the_categories_of_the_tables_hold(loaded, tmp_path):
    limits = Limits(most_graphs=2, most_bytes=3000, max_wait_ms=0)
    loaded.schema = replace(loaded.schema, molecules=False)
    app = app_of(service_of_export(tmp_path, limits=limits))
    graph = graph_of("CCO")
    graph["x"][0][0] = 10**6
    with testclient.TestClient(app) as client:
        large = client.post("/predict", content=b" " * 3001, headers=JSON)
        many = client.post("/predict", json={"graphs": [graph_of("C")] * 3})
        strange = client.post("/predict", json={"graphs": [graph]})
        smiles = client.post("/predict", json={"smiles": ["CCO"]})
        stats = client.get("/metrics").text
    assert [each.status_code for each in (large, many, strange)] == [413, 413, 422]
    assert "'x' has 1000000 in column 0" in strange.json()["detail"]
    assert (smiles.status_code, "SMILES" in smiles.json()["detail"]) == (422, True)
    assert 'staticgraph_batches_total{bucket="0"} 0.0' in stats, "none of it reached the model"


def test_what_an_export_does_not_say_is_said(loaded, tmp_path):
    def said(**options):
        service = service_of_export(tmp_path, **options)
        service.server.close()
        return serve.unrecorded(service)

    (line,) = said()
    assert line.startswith("outputs only, no probabilities:"), "its data said that it is molecules"
    loaded.schema = replace(loaded.schema, molecules=False)
    assert [line.partition(":")[0] for line in said()] == [
        "graphs only, no SMILES", "outputs only, no probabilities"
    ]  # fmt: skip
    loaded.manifest = replace(loaded.manifest, categories={"x": loaded.manifest.categories["x"]})
    (line,) = said(smiles=True, task="classes")
    assert line.startswith("any whole number is let through to edge_attr:")


def test_smiles_are_refused_where_the_fields_are_other_ones(loaded, tmp_path):
    from torch_geometric.data import Data

    data = Data(x=torch.ones(2, 3), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    loaded.schema = sg.GraphStore.from_pyg([data]).schema
    with pytest.raises(ValueError, match=r"leave --smiles out"):
        service_of_export(tmp_path, smiles=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--exported", "{}", "--device", "cpu"], "leave --device out"),
        (["--exported", "{}", "--compile-mode", "eager"], "leave --compile-mode out"),
        (["--run", "{}", "--digest", "ab"], "leave --digest out"),
        (["--run", "{}", "--smiles", "--task", "binary"], "leave --smiles and --task out"),
        (["--run", "{}", "--exported", "{}"], "give one of --run and --exported"),
        ([], "give one of --run and --exported"),
        (["--exported", "{}"], "has no export.json"),
    ],
)
def test_options_that_do_not_go_together(tmp_path, capsys, options, words):
    assert words in refusal(["serve", *(o.format(tmp_path) for o in options)], capsys)


def test_a_manifest_keeps_categories_and_an_older_one_has_none(tmp_path, loaded):
    digest = loaded.manifest.save(tmp_path)
    found = ExportManifest.read(tmp_path)
    assert (found.categories, found.digest) == (loaded.manifest.categories, digest)
    assert set(found.categories) == {"x", "edge_attr"}
    values = json.loads((tmp_path / "export.json").read_text())
    del values["checksum"]
    for wrong in ({"x": [3]}, {"x": [0] * 9}, {"x": [True] * 9}, {"z": [1]}, {"x": 1}, [1]):
        (tmp_path / "export.json").write_text(json.dumps({**values, "categories": wrong}))
        with pytest.raises(sg.errors.ExportRefused):
            ExportManifest.read(tmp_path)
    del values["categories"]
    (tmp_path / "export.json").write_text(json.dumps(values))
    assert ExportManifest.read(tmp_path).categories == {}
