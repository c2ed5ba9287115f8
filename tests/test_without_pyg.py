"""PyG is one adapter: a model in plain torch trains, is checked and predicts where it cannot be
imported, with the numbers that it has where it can."""

import json
import sys

import pytest
import torch
from support.examples import EXAMPLES
from support.patience import patience
from support.program import run_program

# In a process without PyG, and here, where it is; what both print in eager is compared.
PROGRAM = """
import torch
import staticgraph as sg

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(9, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.message = torch.nn.Linear(16, 16)
        self.out = torch.nn.Linear(16, 1)

    def forward(self, batch):
        h = self.norm(self.embed(batch.x.float())).relu()
        source, target = batch.edge_index
        h = h.index_add(0, target, self.message(h)[source])
        return self.out(h.new_zeros(batch.num_graphs, 16).index_add(0, batch.batch, h))

def square(out, batch):
    return (out - batch.y).square().squeeze(1)

def shifted(data):
    data.x = data.x + 1

store = sg.datasets.open(path)
plan = sg.plan_buckets(store, 64, num_buckets=1)

def trained(mode):
    torch.manual_seed(0)
    net = Net()
    assert sg.check(net, plan, store, loss=square)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    runner = sg.StaticGraphRunner(net, plan, loss=square, optimizer=optimizer, mode=mode)
    losses = [float(runner.step(batch)) for batch in runner.loader(store, transform=shifted)]
    loaded = next(iter(runner.loader(store))).to_data_list()
    graphs = [*loaded[:2], store[3].to("cpu")]
    shapes = [{n: list(graph[n].shape) for n in ("x", "edge_index", "y")} for graph in graphs]
    assert losses[-1] < losses[0]
    assert any(bucket.compiles for bucket in runner.report().buckets) == (mode != "eager")
    return [losses, runner.predict(store).tolist(), shapes]
"""
WITHOUT = """
import json, sys

class NoPyG:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch_geometric":
            raise ModuleNotFoundError("No module named 'torch_geometric'", name="torch_geometric")

sys.meta_path.insert(0, NoPyG())
path = sys.argv[1]
"""
THERE = """
torch.set_num_threads(1)
for needs_pyg in (
    lambda: sg.StaticGraphRunner(Net(), plan, mode="fused"),
    lambda: sg.check(Net(), plan, loss=square, rewrites=True),
):
    try:
        needs_pyg()
    except ValueError as error:
        assert "PyG, which is not installed" in str(error), error
    else:
        raise AssertionError("it did without")
print(json.dumps([trained("eager"), trained("default")]))
"""
# Batches of a class of the user's own, against plain torch.
PADDED = """
import copy

def batch(n):
    of = torch.arange(n) // 3
    return {"x": torch.randn(n, 3), "i": torch.arange(n), "of": of, "y": torch.randn(n // 3)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.lin = torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)
    def forward(self, data):
        rows = self.lin(self.norm(data["x"])).squeeze(1)
        return torch.zeros(len(data["y"])).index_add(0, data["of"], rows)

def loss(out, data):
    return (out - data["y"]) ** 2

index = {"i": "node", "of": "graph"}
schema = sg.Schema.of_batch(batch(9), node=["x"], graph=["y"], edge=["i"], index=index)
plan = sg.plan_stream([(3, 3)] * 8, batch_size=4, schema=schema)
padder = sg.Padder(plan, schema=schema, like=batch(9), overflow="split")
model = Model()
plain = copy.deepcopy(model)
optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (model, plain)]
runner = sg.StaticGraphRunner(model, padder, loss=loss, optimizer=optimizers[0])
for n in (9, 12, 6):
    data = batch(n)
    optimizers[1].zero_grad()
    expected = loss(plain(data), data).mean()
    expected.backward()
    optimizers[1].step()
    assert torch.allclose(runner.step(padder(data) if n == 9 else data), expected, rtol=1e-4)
for n in (9, 60):  # a whole batch, and one in parts
    data = batch(n)
    assert torch.allclose(runner.predict(data), plain.eval()(data), rtol=1e-4, atol=1e-5)
assert "torch_geometric" not in sys.modules
"""


@pytest.mark.slow
def test_a_model_in_plain_torch_trains_where_pyg_cannot_be_imported():
    esol = str(EXAMPLES / "esol.npz")
    done = run_program(["-c", WITHOUT + PROGRAM + THERE + PADDED, esol], timeout=patience(120))
    assert done.returncode == 0, done.stderr
    eager, compiled = json.loads(done.stdout.splitlines()[-1])
    here = {"path": esol}
    exec(PROGRAM, here)
    assert eager == here["trained"]("eager")
    assert "torch_geometric" in sys.modules, "it was there for that"
    # Losses alone: Adam magnifies what rounding leaves of a bias before a norm.
    torch.testing.assert_close(compiled[0], eager[0], rtol=1e-3, atol=0)
