"""PyG is one adapter: a model in plain torch trains, is checked and predicts where it cannot be
imported, with the numbers that it has where it can."""

import json
import subprocess
import sys

import pytest
from support.examples import EXAMPLES

# Run twice, with and without PyG; the last line printed is compared.
PROGRAM = """
import json, sys

class NoPyG:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch_geometric":
            raise ModuleNotFoundError("No module named 'torch_geometric'", name="torch_geometric")

mode, store, without = sys.argv[1:]
if without == "without":
    sys.meta_path.insert(0, NoPyG())

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

store = sg.datasets.open(store)
plan = sg.plan_buckets(store, 64)
torch.manual_seed(0)
net = Net()
report = sg.check(net, plan, store, loss=square)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
runner = sg.StaticGraphRunner(net, plan, loss=square, optimizer=optimizer, mode=mode)
losses = [float(runner.step(batch)) for batch in runner.loader(store, transform=shifted)]
graphs = [*next(iter(runner.loader(store))).to_data_list()[:2], store[3].to("cpu")]
shapes = [{name: list(graph[name].shape) for name in ("x", "edge_index", "y")} for graph in graphs]
compiled = sum(bucket.compiles for bucket in runner.report().buckets)
print(json.dumps([bool(report), compiled, losses, runner.predict(store).tolist(), shapes]))
imported = "torch_geometric" in sys.modules
assert imported == (without != "without"), imported
"""


def _printed(mode, without):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode, str(EXAMPLES / "esol.npz"), without],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["eager", "default"])
def test_a_model_in_plain_torch_trains_where_pyg_cannot_be_imported(mode):
    printed = _printed(mode, "without")
    passed, compiled, losses, *_ = printed
    assert passed
    assert (compiled > 0) == (mode != "eager")
    assert losses[-1] < losses[0]
    assert printed == _printed(mode, "with")


def test_what_needs_pyg_says_so():
    program = (
        PROGRAM.split("torch.manual_seed")[0]
        + """
for needs_pyg in (
    lambda: sg.StaticGraphRunner(Net(), plan, mode="fused"),
    lambda: sg.check(Net(), plan, loss=square, rewrites=True),
):
    try:
        needs_pyg()
    except ValueError as error:
        print(error)
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "eager", str(EXAMPLES / "esol.npz"), "without"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("PyG, which is not installed") == 2, done.stdout
