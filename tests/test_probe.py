"""The probe against what the profiler saw the CPU allocate, and what it leaves behind."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import dropout_edge, to_dense_batch

import staticgraph as sg
from staticgraph import models
from staticgraph.batches.slots import SlotLayout
from staticgraph.errors import ProbeFailed
from staticgraph.memory.model import MemoryModel
from staticgraph.nn.context.dense_layout import DenseLayout
from staticgraph.probing.allocator import AllocatorReader
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.live_storages import LiveStorages
from staticgraph.probing.probe import ascending, batch_bytes, probe, probe_capacities
from staticgraph.probing.profiler import ProfilerAllocator
from staticgraph.probing.reading import GivenReader, Probed, Reading
from staticgraph.probing.resident import resident_bytes
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.recordable_optimizer import make_recordable
from staticgraph.steps.subject import Subject

# Small enough for a real step on a busy core, large enough that activations outweigh constants.
POINTS = [
    Capacity(150, 310, 8, 60),
    Capacity(300, 620, 16, 60),
    Capacity(300, 800, 16, 60),
    Capacity(400, 620, 16, 60),
    Capacity(300, 620, 24, 60),
    Capacity(300, 620, 16, 30),
    Capacity(300, 620, 16, 15),
    Capacity(440, 900, 24, 45),
]
HELD_OUT = Capacity(900, 1_850, 50, 55)

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def squared(out, batch):
    return (out - batch.y).square()


def task_of(store, name="gine", optimizer="adam", **options):
    torch.manual_seed(0)
    model = models.build(name, store, hidden=32, layers=2)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    step = {name: options.pop(name) for name in ("accumulate", "counted") if name in options}
    return Probed(sg.Subject(model, squared, optimizer, **options), store.schema, **step)


def probed(task, store, **options):
    return probe(
        task.subject,
        store,
        accumulate=task.accumulate,
        path="counted" if task.counted else "recorded",
        **{"capacities": POINTS, "held_out": HELD_OUT, **options},
    )


def measured(task, capacity):
    with AllocatorReader(ProfilerAllocator()).open(task) as read:
        return read(capacity)


# ---------------------------------------------------------------------- against the profiler


@pytest.mark.parametrize(
    ("name", "optimizer", "options"),
    [
        ("gine", "adam", {}),
        ("gcn", "adamw", {}),
        ("gat", "sgd", {}),
        ("gps", "adam", {}),
        ("gine", "momentum", {"accumulate": 2}),
        ("gps", "adamw", {"autocast": torch.bfloat16}),
        ("gat", "adam", {"autocast": torch.bfloat16}),
        ("gcn", "adam", {"autocast": torch.bfloat16, "accumulate": 3}),
        ("gine", "adam", {"counted": True}),
    ],
)
def test_the_prediction_is_what_the_cpu_allocates(esol, name, optimizer, options):
    """At more than twice the largest probed capacity, within 3% (the fit has no slack to hide)."""
    task = task_of(esol, name, optimizer, **options)
    memory = probed(task, esol)
    assert all(2 * c.nodes <= HELD_OUT.nodes for c in POINTS)
    assert memory.fit.form == "linear", "fused attention and message passing are linear"
    found = measured(task, HELD_OUT)
    assert memory.fit.predict(HELD_OUT) == pytest.approx(found.step, rel=0.03)
    assert memory.update_bytes == pytest.approx(found.update, rel=0.03)


class ExplicitAttention(nn.Module):
    """Softmax over explicit weights: ``[G, M, M]`` in memory."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(9, 3 * width), nn.Linear(width, 1)

    def forward(self, batch):
        layout = DenseLayout.of(batch)
        q, k, v = layout.to_dense(self.inward(batch.x.float())).chunk(3, dim=-1)
        weights = (q @ k.transpose(1, 2)).softmax(dim=-1)
        return self.outward((weights @ v).sum(dim=1))


def test_explicit_attention_comes_out_quadratic_in_the_largest_graph(esol):
    model = ExplicitAttention(8)
    task = Probed(sg.Subject(model, squared, torch.optim.Adam(model.parameters())), esol.schema)
    memory = probed(task, esol)
    assert memory.fit.form == "attention"
    assert memory.binding(Capacity(900, 1_850, 50, 250)) == "attention"
    found = measured(task, HELD_OUT)
    assert memory.fit.predict(HELD_OUT) == pytest.approx(found.step, rel=0.03)


class DenseAttention(nn.Module):
    """PyG's own way: ``to_dense_batch``, attention with explicit weights, back by the mask; some
    edges dropped before."""

    def __init__(self, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(9, width), nn.Linear(width, 1)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)

    def forward(self, x, edge_index, edge_attr, batch, batch_size):
        _, kept = dropout_edge(edge_index, 0.2)
        h = self.inward(x.float()) + edge_attr[kept].float().mean()
        block, mask = to_dense_batch(h, batch)
        out, _ = self.attention(block, block, block, key_padding_mask=~mask)
        return self.outward(global_add_pool((block + out)[mask], batch, batch_size))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("counted", [False, True])
def test_a_mask_that_is_an_index_is_probed_and_its_attention_predicted(esol, dropout, counted):
    """Also at twice the probed largest graph, and at more and smaller graphs."""
    model = DenseAttention(8, dropout)
    optimizer = torch.optim.Adam(model.parameters())
    subject = Probed(Subject(model, squared, optimizer), esol.schema, counted=counted)
    memory = probed(subject, esol)
    assert memory.fit.form == "attention"
    for capacity in (HELD_OUT, Capacity(900, 1_850, 24, 120), Capacity(900, 1_850, 80, 20)):
        found = measured(subject, capacity).step
        assert memory.fit.predict(capacity) == pytest.approx(found, rel=0.03), capacity


@pytest.mark.parametrize("kernels", [False, True])
def test_attention_that_follows_real_counts_is_predicted(esol, kernels):
    """Its blocks are without the padding graph, which is an eighth of the smallest probe's."""
    torch.manual_seed(0)
    model = models.build("gps", esol, hidden=32, layers=1, dropout=0.1)
    model = sg.convert(model, kernels=True) if kernels else model
    optimizer = torch.optim.Adam(model.parameters())
    subject = Probed(Subject(model, squared, optimizer), esol.schema, counted=True)
    memory = probed(subject, esol)
    assert memory.fit.counted
    assert memory.fit.residual < 0.03
    assert MemoryModel.from_dict(memory.to_dict()).fit == memory.fit
    # Wider and larger batches have several blocks, which real counts clip; a block that is computed
    # has its gradients beside it, whatever the square of its width.
    for capacity in (HELD_OUT, Capacity(900, 1_850, 24, 120), Capacity(200, 420, 12, 40)):
        found = measured(subject, capacity).step
        assert memory.fit.predict(capacity) == pytest.approx(found, rel=0.03), capacity


def test_evaluation_is_probed_without_a_loss(esol):
    model = models.build("gcn", esol, hidden=32, layers=2)
    task = Probed(sg.Subject(model), esol.schema)
    memory = probed(task, esol)
    assert memory.resident.optimizer == memory.resident.gradients == 0
    found = measured(task, HELD_OUT)
    assert memory.fit.predict(HELD_OUT) == pytest.approx(found.step, rel=0.03)
    assert memory.update_bytes == found.update == 0, "it has no update, whose bytes are a floor"
    assert memory.step_bytes(POINTS[0]) == pytest.approx(measured(task, POINTS[0]).step, rel=0.03)


class Asked(LiveStorages):
    """An allocator of real tensors of the CPU that can be asked after every operation."""

    name = "a count"
    by_operation = True

    def allocated(self):
        return self.live_bytes

    def peak(self):
        return self.peak_bytes

    def reserved(self):
        return self.live_bytes

    def trim(self):
        pass


class AskedOnce(Asked):
    by_operation = False


@pytest.mark.parametrize("counted", [False, True])
def test_real_steps_are_predicted_by_their_moments(esol, counted):
    """Explicit weights are on top where graphs are large, the way back elsewhere: one mark a step
    is the largest of both, which no one sum explains at other capacities."""
    torch.manual_seed(0)
    model = DenseAttention(8, 0.1)
    optimizer = torch.optim.Adam(model.parameters())
    subject = Probed(Subject(model, squared, optimizer), esol.schema, counted=counted)
    asked = (HELD_OUT, Capacity(900, 1_850, 24, 120), Capacity(1_700, 3_500, 90, 20))
    missed = {}
    for kind in (Asked, AskedOnce):
        allocator = kind()
        with allocator:
            allocator.watch([*model.parameters(), *model.buffers()])
            reader = AllocatorReader(allocator)
            memory = probed(subject, esol, reader=reader)
            with reader.open(subject) as read:
                missed[kind] = max(
                    abs(memory.fit.predict(capacity) / read(capacity).step - 1)
                    for capacity in asked
                )
    assert missed[Asked] < 0.01 < missed[AskedOnce], "what the moments are for"


def test_what_is_resident_is_counted_exactly(esol):
    task = task_of(esol)
    expected = resident_bytes(task.subject)
    model, optimizer = task.subject.model, task.subject.optimizer
    runner = sg.StaticGraphRunner(model, [POINTS[0]], loss=squared, optimizer=optimizer)
    runner.step(sg.StaticBatch.of(esol, range(5), POINTS[0]))

    def total(tensors):
        return sum(t.untyped_storage().nbytes() for t in tensors)

    assert expected.parameters == total(model.parameters())
    assert expected.gradients == total(p.grad for p in model.parameters())
    assert expected.buffers == total(model.buffers())
    state = [v for values in optimizer.state.values() for v in values.values()]
    assert expected.optimizer == total(v for v in state if torch.is_tensor(v))
    assert resident_bytes(task.subject) == expected, "state in place is not counted twice"


def test_the_recorded_path_is_read_unless_asked_otherwise(esol):
    """Batch norm over a mask keeps more than over the real rows: the two paths differ."""
    readings = {}
    for counted in (False, True):
        with FakeTensorReader().open(task_of(esol, counted=counted)) as read:
            readings[counted] = read(HELD_OUT).step
    assert readings[True] < readings[False]


def test_counted_as_on_cuda(esol):
    """Every storage in blocks, so never less; and the workspaces of cuBLAS are charged."""
    readings = {}
    for like in ("cpu", "cuda"):
        with FakeTensorReader(like).open(task_of(esol)) as read:
            readings[like] = read(HELD_OUT)
    assert readings["cuda"].step >= readings["cpu"].step
    assert readings["cuda"].workspaces > readings["cpu"].workspaces == 0
    assert readings["cuda"].update > readings["cpu"].update, "all parameters at once"


# ---------------------------------------------------------------------- read once, or warm


def leaving(kept):
    """A forward that counts its calls and may keep its result: in place of the last, or of none."""
    calls = []

    def forward(model, batch):
        out = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, batch.num_graphs)
        calls.append(out.shape)
        if kept == "the last":
            calls[:] = [*(c for c in calls if not torch.is_tensor(c)), out.detach()]
        elif kept == "all":
            calls.append(out.detach())
        return out

    return forward, lambda: sum(not torch.is_tensor(call) for call in calls)


@pytest.mark.parametrize(
    ("kept", "steps"), [("none", (2, 3, 4)), ("the last", (2, 4, 6)), ("all", (2, 5, 8))]
)
def test_a_step_is_read_once_where_that_tells_the_same(esol, kept, steps):
    """The first capacity warm, others by one step, unless it leaves behind what a later step would
    find: byte for byte what a reader tells that reads every capacity warm."""
    forward, count = leaving(kept)
    task = task_of(esol, forward=forward)
    once, counts, warm = [], [], []
    with FakeTensorReader().open(task) as read:
        for capacity in POINTS[:3]:
            once.append(read(capacity))
            counts.append(count())
    assert tuple(counts) == steps
    for capacity in POINTS[:3]:
        with FakeTensorReader().open(task) as read:
            warm.append(read(capacity))
    for one, other in zip(once, warm, strict=True):
        assert one[:4] == other[:4]
        assert one.moments.tolist() == other.moments.tolist()
        assert one.operations.tolist() == other.operations.tolist()


# ---------------------------------------------------------------------- what is left behind


def snapshot(task):
    model, optimizer = task.subject.model, task.subject.optimizer
    return {
        "state": copy.deepcopy(model.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "identity": [id(p) for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "flags": [m.training for m in model.modules()],
        "classes": [type(m) for m in model.modules()],
        "random": torch.get_rng_state(),
    }


def assert_same(found, expected):
    for key in ("identity", "flags", "classes"):
        assert found[key] == expected[key], key
    assert torch.equal(found["random"], expected["random"])
    assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    for key, value in expected["state"].items():
        assert torch.equal(found["state"][key], value), key
    assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    for index, values in expected["optimizer"]["state"].items():
        for key, value in values.items():
            assert torch.equal(found["optimizer"]["state"][index][key], value), (index, key)
    for one, other in zip(found["gradients"], expected["gradients"], strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


@pytest.mark.parametrize("reader", ["fake", AllocatorReader(ProfilerAllocator())])
@pytest.mark.parametrize("trained", [False, True])
def test_a_probe_changes_nothing(esol, reader, trained):
    task = task_of(esol)
    if trained:  # state, gradients and running statistics to lose
        graphs = [esol[i] for i in range(6)]
        from torch_geometric.data import Batch

        batch = Batch.from_data_list(graphs)
        out = task.subject.model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, 6)
        out.square().sum().backward()
        task.subject.optimizer.step()
        task.subject.model.eval()
    before = snapshot(task)
    probed(task, esol, reader=reader, capacities=POINTS[:6], held_out=None)
    assert_same(snapshot(task), before)


def test_a_scheduler_is_not_stepped(esol):
    """Schedulers take hold of ``step``; the twin must not reach the real optimizer through it."""
    task = task_of(esol)
    torch.optim.lr_scheduler.StepLR(task.subject.optimizer, 10)
    before = snapshot(task)
    probed(task, esol)
    assert_same(snapshot(task), before)


# ---------------------------------------------------------------------- growth and refusals


def test_probe_sizes_grow_strictly(hiv):
    for graphs in (2, 8, 32):
        capacities, held_out = probe_capacities(hiv.sizes, graphs)
        costs = [c.nodes + c.edges + c.graphs * c.max_graph_nodes for c in capacities]
        assert costs == sorted(set(costs)), "each costlier than the one before"
        assert held_out.nodes >= 2 * max(c.nodes for c in capacities)
        assert max(c.edges for c in capacities) >= 9.9 * min(c.edges for c in capacities)
    assert ascending([POINTS[1], POINTS[0], POINTS[1]]) == POINTS[:2]


def test_the_same_data_the_same_probe(esol):
    given = GivenReader(lambda c: 1000 * c.nodes + 10 * c.edges)
    model = nn.Linear(1, 1)
    assert probe(model, esol, reader=given) == probe(model, esol, reader=given)


def test_memory_that_runs_out_makes_the_probe_smaller(esol):
    read = []

    def bytes_of(capacity):
        read.append(capacity)
        if capacity.nodes > 700:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        return 10_000 + 300 * capacity.nodes + 40 * capacity.edges

    memory = probe(nn.Linear(1, 1), esol, reader=GivenReader(bytes_of))
    assert memory.predict(Capacity(100, 200, 5)) >= 10_000 + 30_000 + 8_000
    assert all(p.capacity.nodes <= 700 for p in memory.points)
    assert memory.fit.residual < 1e-9
    assert "memory ran out at" in memory.note or max(c.nodes for c in read) > 700


def test_a_probe_that_never_fits_says_so(esol):
    def bytes_of(capacity):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")

    with pytest.raises(
        ProbeFailed, match=r"not even the smallest probe fits.*CUBLAS.*reader='fake'"
    ):
        probe(nn.Linear(1, 1), esol, reader=GivenReader(bytes_of))


def test_any_other_error_passes_unchanged(esol):
    mine = ValueError("of the user's own")

    def forward(model, batch):
        raise mine

    task = task_of(esol, forward=forward)
    for reader in ("fake", AllocatorReader(ProfilerAllocator())):
        with pytest.raises(ValueError) as caught:
            probed(task, esol, reader=reader)
        assert caught.value is mine


def test_a_model_that_reads_data_is_not_answered_with_a_number(esol):
    """Only the optimizer's step count is answered; a size read off data would be made up."""

    def forward(model, batch):
        return model(batch.x, batch.edge_index, None, batch.batch, int(batch.batch.max()) + 1)

    with pytest.raises(Exception, match=r"[Dd]ata.?[Dd]ependent|_local_scalar_dense"):
        probed(task_of(esol, "gcn", forward=forward), esol)


def test_choices_are_checked(esol):
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="reader='gpu'; choose"):
        probe(model, esol, reader="gpu")
    with pytest.raises(ValueError, match=r"runs real steps.*cpu.*fake-cuda"):
        probe(model, esol, reader="cuda")
    with pytest.raises(ValueError, match="path="):
        probe(model, esol, path="quick")
    with pytest.raises(ValueError, match="form="):
        probe(model, esol, form="cubic")
    with pytest.raises(ValueError, match="accumulate"):
        probe(model, esol, accumulate=0)
    foreign = torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)
    with pytest.raises(ValueError, match=r"parameter of shape \[3\] that the model has not"):
        probe(model, esol, loss=squared, optimizer=foreign)


def test_the_bytes_of_a_batch_are_an_upper_bound_within_the_alignment(hiv):
    found = batch_bytes(hiv.schema)
    for capacity in POINTS:
        layout = SlotLayout(0, capacity, hiv.schema)
        assert layout.nbytes <= found.of(capacity) <= layout.nbytes + 256 * len(layout.entries)


def test_the_table_tells_measured_fitted_and_error(esol):
    given = GivenReader(lambda c: Reading(1000 * c.nodes + 10 * c.edges, update=500))
    text = str(probe(nn.Linear(1, 1), esol, reader=given))
    for word in ("measured", "fitted", "held out", "residual 0.00%", "held-out error 0.00%"):
        assert word in text
    assert re.search(r"1,000 nodes \+ 10 edges", text)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_made_for_recording_is_read_without_its_device(esol, kind):
    """Fused, capturable, its learning rate in a tensor: none of it changes the bytes on a CPU."""
    model = task_of(esol).subject.model
    made = [kind(model.parameters(), lr=0.1) for _ in range(2)]
    make_recordable(made[1])
    assert all(group["fused"] for group in made[1].param_groups)
    plain, recorded = (Probed(sg.Subject(model, squared, o), esol.schema) for o in made)
    assert resident_bytes(plain.subject) == resident_bytes(recorded.subject)
    with FakeTensorReader().open(plain) as one, FakeTensorReader().open(recorded) as other:
        assert one(POINTS[0]).step == other(POINTS[0]).step
