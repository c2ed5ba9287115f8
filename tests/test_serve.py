"""A trained model over HTTP: the answers of ``predict``, and one line for every error."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from support.alike import assert_same_state
from support.command import refusal
from support.examples import EXAMPLES
from support.request_bodies import (
    ARRAYS,
    HOSTILE,
    JSON,
    SMILES,
    arrays_of,
    graph_of,
)
from support.serve_process import answer_of, serving, stopped
from support.trained_run import trained as train_small
from torch_geometric.data import Batch, Data

import staticgraph as sg
from staticgraph.errors import BatchFailed
from staticgraph.serving import for_serving
from staticgraph.sizes.capacity import GraphSize
from staticgraph.training.checkpoint import Trained

fastapi = pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("rdkit", reason="needs the extra smiles")
testclient = pytest.importorskip("starlette.testclient", reason="needs starlette's test client")

from support.served_app import app_of_run  # noqa: E402

from staticgraph.serving.app import reads_inline  # noqa: E402
from staticgraph.serving.service import fits_molecules, has_molecules  # noqa: E402

# They serve a model that is trained for them; what needs none is in other files.
pytestmark = pytest.mark.slow

# Float32 sums of some hundreds of terms in a different order.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "esol"
    train_small(str(EXAMPLES / "esol.npz"), folder, model="gine", batch_size=128, epochs=1)
    return folder


@pytest.fixture(scope="module")
def client(run_folder):
    app = app_of_run(run_folder, mode="eager", max_wait_ms=0, most_graphs=20, most_bytes=100_000)
    with testclient.TestClient(app, raise_server_exceptions=True) as client:
        yield client


@pytest.fixture(scope="module")
def trained(run_folder) -> Trained:
    return Trained.load(run_folder, torch.device("cpu"))


def expected(trained: Trained) -> np.ndarray:
    """The model's outputs in plain PyG, with SMILES read as the data set reads them."""
    graphs = []
    for smiles in SMILES:
        values = {k: torch.tensor(v, dtype=torch.int64) for k, v in graph_of(smiles).items()}
        values["edge_attr"] = values["edge_attr"].view(-1, 3)
        values["edge_index"] = values["edge_index"].view(2, -1)
        graphs.append(Data(**values))
    batch = Batch.from_data_list(graphs)
    with torch.no_grad():
        out = trained.model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, len(graphs))
    return out.numpy()


def test_smiles_graphs_and_bytes_get_the_same_answer(client, trained):
    bodies = [
        (json.dumps({"smiles": SMILES}), JSON),
        (json.dumps({"graphs": [graph_of(s) for s in SMILES]}), JSON),
        (save(arrays_of([graph_of(s) for s in SMILES])), ARRAYS),
    ]
    for body, headers in bodies:
        answer = client.post("/predict", content=body, headers=headers)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["outputs"], expected(trained), **CLOSE)
        assert "probabilities" not in answer.json(), "a regression has none"


def test_under_a_path_of_another_application(client):
    outer = fastapi.FastAPI()
    outer.mount("/models/esol", client.app)
    with_prefix = testclient.TestClient(outer)
    body = json.dumps({"smiles": SMILES})
    answers = [
        each.post(path, content=body, headers=JSON)
        for each, path in ((client, "/predict"), (with_prefix, "/models/esol/predict"))
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    wrong = with_prefix.post("/models/esol/predict", content=b"{", headers=JSON)
    assert (wrong.status_code, "no JSON" in wrong.json()["detail"]) == (400, True)
    assert client.get("/predict").status_code == 405


def test_a_run_is_read_without_its_data(run_folder, trained, esol):
    assert trained.task == "regression"
    assert trained.categories == {n: esol.cardinality(n) for n in ("x", "edge_attr")}
    state = torch.load(run_folder / "checkpoint.pt", weights_only=True)["model"]
    assert_same_state(trained.model, state)
    with pytest.raises(FileNotFoundError, match="staticgraph train"):
        Trained.load(run_folder.parent, torch.device("cpu"))


def test_a_plan_for_serving_has_smaller_buckets_that_hold_every_graph(trained, esol):
    plan = for_serving(trained.plan)
    assert len(plan.capacities) > len(trained.plan.capacities)
    largest = GraphSize(*esol.sizes.max(axis=0))
    assert all(capacity.holds(largest) for capacity in plan.capacities)
    assert for_serving(sg.BucketPlan.of([(9, 20, 3)])).capacities == (sg.Capacity(9, 20, 3),)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_one_line(client, name):
    body, headers, status, words = HOSTILE[name]
    answer = client.post("/predict", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]
    assert "Traceback" not in answer.text


def test_what_takes_long_to_read_holds_up_no_other_request():
    """RDKit needs a tenth of a second for molecules of some kilobytes; all others used to wait."""
    molecules = json.dumps({"smiles": SMILES * 100}).encode()
    assert not reads_inline(molecules)
    assert reads_inline(json.dumps({"smiles": SMILES}).encode())
    assert reads_inline(json.dumps({"graphs": [graph_of("C" * 40)]}).encode())
    assert not reads_inline(b" " * 100_000)


def test_a_body_without_a_length_is_read_no_further_than_the_limit(client):
    answer = client.post("/predict", content=iter([b" " * 10_000] * 100), headers=JSON)
    assert answer.status_code == 413


def test_health_metrics_and_interface(client):
    client.post("/predict", json={"smiles": ["CCO"]})
    assert client.get("/health").json() == {"status": "ok"}
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = dict(
        line.rsplit(" ", 1) for line in metrics.text.splitlines() if not line.startswith("#")
    )
    assert float(samples['staticgraph_requests_total{end="answered"}']) >= 1
    assert float(samples["staticgraph_queue_graphs"]) == 0
    assert float(samples['staticgraph_latency_seconds{quantile="0.99"}']) > 0
    described = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    fields = described["content"]["application/json"]["schema"]["properties"]["graphs"]["items"]
    assert sorted(fields["required"]) == ["edge_attr", "edge_index", "x"]
    home = client.get("/")
    assert '<input id="smiles"' in home.text
    assert "default-src 'none'" in home.headers["content-security-policy"]


def test_a_failure_of_the_model_is_said_in_one_line(run_folder, monkeypatch):
    def fails(self, batch):
        raise RuntimeError("secret\nmore")

    monkeypatch.setattr(sg.StaticGraphRunner, "predict_batch", fails)
    with testclient.TestClient(app_of_run(run_folder, mode="eager", max_wait_ms=0)) as client:
        for _ in range(3):
            answer = client.post("/predict", json={"smiles": ["CCO"]})
            assert (answer.status_code, answer.json()) == (500, {"detail": "the model failed"})
        assert client.get("/health").status_code == 503
    assert issubclass(BatchFailed, RuntimeError)


def test_a_full_queue_is_a_503_with_a_time(client, monkeypatch):
    def busy(self, *_):
        raise sg.errors.ServerBusy("4 graphs wait", 2.5)

    monkeypatch.setattr(sg.Server, "_check_room", busy)
    answer = client.post("/predict", json={"smiles": ["CCO"]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


def test_stopping_closes_the_server(run_folder, monkeypatch):
    closed = []
    close = sg.Server.close
    monkeypatch.setattr(sg.Server, "close", lambda self: (closed.append(1), close(self)))
    with testclient.TestClient(app_of_run(run_folder, mode="eager")) as client:
        assert client.get("/health").status_code == 200
    assert closed == [1]


def test_what_stays_for_a_while_is_taken_apart_at_the_end():
    """Otherwise Triton's extension reports leaks when the process ends."""
    script = (
        "import atexit, gc; from staticgraph.serving.app import settle\n"
        "atexit.register(lambda: print(gc.get_freeze_count()))\n"
        "settle(); print(gc.get_freeze_count() > 0)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.stdout.split() == ["True", "0"]


def test_which_data_is_read_from_smiles(trained, hiv):
    """The data itself says so: PyG's molecules have other features in the same fields."""
    assert has_molecules(trained.schema), "esol comes with the package, as an .npz"
    assert has_molecules(hiv.schema)
    again = sg.GraphStore.from_pyg(hiv[:3]).schema
    assert fits_molecules(again)
    assert not has_molecules(again)
    other = Data(x=torch.ones(2, 3), edge_index=torch.zeros(2, 1, dtype=torch.int64))
    assert not fits_molecules(sg.GraphStore.from_pyg([other]).schema)


def test_the_command_says_what_is_missing(tmp_path, monkeypatch, capsys):
    assert "train a model there first" in refusal(["serve", "--run", str(tmp_path)], capsys)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None)
    from staticgraph.cli import serve

    with pytest.raises(sg.errors.MissingPackage, match="pip install fastapi uvicorn msgspec"):
        serve.require_extra()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("workers", "told"),
    [(2, signal.SIGINT), (0, signal.SIGTERM), (0, signal.SIGINT)],
)
def test_the_command_serves_and_ends_with_0_when_told_to_stop(run_folder, workers, told):
    options = ["--run", str(run_folder), "--compile-mode", "eager", "--workers", str(workers)]
    with serving(*options) as (process, address, _):
        outputs = json.loads(answer_of(f"{address}/predict", {"smiles": SMILES}))["outputs"]
        assert len(outputs) == len(SMILES)
        metrics = answer_of(f"{address}/metrics")
        assert 'staticgraph_requests_total{end="answered"} 1.0' in metrics
        rest = stopped(process, told)
    assert rest.endswith("all accepted requests are answered; stopped\n")
    assert process.returncode == 0
