"""All ranks keep one model, even if what is trained changes in mid-training or is not part of the
model; what a rank writes by itself is reported.

The oracle is one process over the union of the ranks' batches, as in ``test_distributed.py``.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.alike import real_ids, squared, update, warned_of
from support.ranked_net import BATCH, model_of, state_of, store_of
from support.ranks import on_ranks
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import HeteroBatchNorm, global_add_pool

import staticgraph as sg
from staticgraph.distributed.one_model import apart, checksum, differ
from staticgraph.steps import rank_averaging

TOLERANCE = 1e-10


class Trained:
    """The model of a case, its loss, and what the loop does after each step."""

    def __init__(self, case: str, seed: int) -> None:
        self.case = case
        self.model = model_of(sync=False, seed=seed).eval()  # no norm over one rank's rows
        self.model.training = True
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.rand(2, generator=generator, dtype=torch.float64))
        self.project = nn.Linear(2, 2).double()
        more = {"beside": [self.weight], "projected": list(self.project.parameters())}
        if case == "unfrozen":
            self.model.bonds.requires_grad_(False)
        if case == "later":
            self.weight.data.zero_()
        given = [*self.model.parameters(), *more.get(case, [])]
        self.optimizer = torch.optim.SGD(given, lr=0.05, momentum=0.9)

    def loss(self, out, batch):
        if self.case == "projected":
            out = self.project(out)
        values = squared(out, batch)
        weighted = self.case in ("beside", "later")
        return values * (-self.weight).exp() + self.weight if weighted else values

    def after(self, steps: int) -> None:
        if steps == 2 and self.case == "unfrozen":
            self.model.bonds.requires_grad_(True)
        if steps == 2 and self.case == "later":
            self.optimizer.add_param_group({"params": [self.weight]})

    def state(self) -> dict[str, torch.Tensor]:
        found = {**self.model.state_dict()}
        if self.case in ("beside", "later"):
            found["weight"] = self.weight
        if self.case == "projected":
            found["project"] = self.project.weight
        return {name: value.detach().clone() for name, value in found.items()}


def _on_rank(case: str) -> tuple[list, dict]:
    store, made = store_of(), Trained(case, dist.get_rank())
    loss = made.loss
    runner = sg.StaticGraphRunner(
        made.model, sg.plan_buckets(store, BATCH), "eager",
        loss=lambda out, batch: loss(out, batch), optimizer=made.optimizer,
    )  # fmt: skip
    ids = []
    for batch in runner.loader(store, shuffle=True):
        ids.append(real_ids(batch))
        runner.step(batch)
        made.after(len(ids))
    return ids, made.state()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", ["unfrozen", "later", "beside", "projected"])
def test_what_is_trained_later_or_beside_the_model_is_one_on_all_ranks(case):
    ranks = on_ranks(2, _on_rank, case)
    store, alone = store_of(), Trained(case, 0)
    for number, parts in enumerate(zip(*(ids for ids, _ in ranks), strict=True), 1):
        data = Batch.from_data_list([store[i] for ids in parts for i in ids])
        out = alone.model(data.x, data.edge_index, data.edge_attr, data.batch)
        update(alone.optimizer, alone.loss(out, data).mean())
        alone.after(number)
    expected = alone.state()
    for _, state in ranks:
        torch.testing.assert_close(state, expected, rtol=0, atol=TOLERANCE)


class Typed(nn.Module):
    """PyG's norm per type, which keeps its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 2)
        self.norm = HeteroBatchNorm(2, 2)

    def forward(self, x, batch, num_graphs):
        h = self.norm(self.lin(x), (x[:, 0] > 0).long())
        return global_add_pool(h, batch, num_graphs)


class Counting(Typed):
    """A buffer that the forward updates with a mean over this rank's, or (``summed``) all rows."""

    def __init__(self, summed: bool) -> None:
        super().__init__()
        self.summed = summed
        self.register_buffer("average", torch.zeros(2))

    def forward(self, x, batch, num_graphs):
        pooled = global_add_pool(self.lin(x), batch, num_graphs)
        if self.training:
            mean = global_add_pool(pooled.detach(), torch.zeros(len(pooled)).long(), 1)[0]
            if self.summed:
                dist.all_reduce(mean)
            with torch.no_grad():
                self.average.lerp_(mean, 0.01)
        return pooled - self.average


def _with_state(kind: str) -> tuple[str, list[str], dict]:
    torch.manual_seed(0)
    model = (Typed() if kind == "norm" else Counting(kind == "summed")).double()
    centre = torch.zeros(2, dtype=torch.float64)

    def loss(out, batch):
        if kind == "centre":
            with torch.no_grad():
                centre.lerp_(sg.masked_mean(out, batch).expand(2), 0.1)
        return squared(out - centre, batch)

    store, said = store_of(), ""
    if kind == "centre":
        model = Typed().double()
    runner = sgd_runner(
        model, sg.plan_buckets(store, BATCH), loss=loss, rate=1e-4, check_padding=False
    )
    with warned_of("values of its own") as told:
        try:
            for batch in runner.loader(store, shuffle=True):
                runner.step(batch)
        except RuntimeError as error:
            said = str(error)
    return said, told, state_of(model)


def test_a_norm_by_types_keeps_one_model():
    (said, told, first), (_, _, second) = on_ranks(2, _with_state, "norm")
    assert not said
    assert not told
    for name, value in first.items():
        assert torch.equal(value, second[name]) or "num_batches" in name, name


def test_a_buffer_that_each_rank_writes_for_itself_is_named_on_all():
    for said, _, _ in on_ranks(2, _with_state, "alone"):
        assert "at step 2 the ranks have different models: average of rank 1 differs" in said
        assert "all_reduce" in said


def _drifts(name: str) -> tuple[int, str]:
    """Changes one parameter of rank 1 in place after step 9; returns the step of the error."""
    rank_averaging.EVERY = 5
    store, model = store_of(), model_of(sync=True)
    runner = sgd_runner(model, sg.plan_buckets(store, BATCH), rate=1e-3)
    steps = 0
    for _ in range(2):
        for batch in runner.loader(store, shuffle=True):
            try:
                runner.step(batch)
            except RuntimeError as error:
                return steps, str(error)
            steps += 1
            if steps == 9 and dist.get_rank() == 1:
                with torch.no_grad():
                    model.get_parameter(name).view(-1)[0] += 1e-3
    return steps, ""


def test_a_parameter_that_one_rank_changes_is_named_with_the_rank():
    """Within as many steps as the comparison leaves out, although 10 is no power of 2."""
    for steps, said in on_ranks(2, _drifts, "conv.nn.0.weight"):
        assert steps == 9
        assert "at step 10 the ranks have different models: conv.nn.0.weight of rank 1" in said


def test_a_checksum_changes_with_any_bit():
    tensors = [torch.rand(3, 4).T, torch.arange(5), torch.tensor(True), torch.rand(2).bfloat16()]
    tensors += [torch.rand(2, dtype=torch.complex64), torch.zeros(0), torch.rand(2).double()]
    whole = int(checksum(tensors))
    assert 0 <= whole < 2**24
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            changed = tensor.clone()
            changed[(0,) * changed.dim()] = False if tensor.dtype == torch.bool else 77
            assert int(checksum([*tensors[:number], changed, *tensors[number + 1 :]])) != whole
    assert whole == int(checksum([tensor.clone() for tensor in tensors]))


def test_a_centre_of_the_loss_that_each_rank_writes_is_warned_of_once():
    for said, told, _ in on_ranks(2, _with_state, "centre"):
        assert not said
        assert len(told) == 1
        assert "the loss writes to a tensor of shape [2]" in told[0]


def test_a_number_that_is_not_finite_on_one_rank_alone_is_a_difference():
    """On all ranks alike, it is no difference: the data may have caused it on each."""
    infinite, plain = torch.tensor([1.0, torch.inf]), torch.ones(2)
    for tensor, other in ((infinite, plain), (plain, infinite), (plain, plain * torch.nan)):
        assert differ(tensor, other)
    assert not differ(infinite, infinite)
    assert not differ(plain, plain * (1 + 1e-7))


def test_one_changed_number_of_many_is_a_difference():
    many = torch.randn(100_000) / 10
    changed = many.clone()
    changed[7] += 1e-3  # of a sum of thousands, and a norm of 30
    assert differ(changed, many)


def test_ranks_with_other_shapes_send_nothing():
    """A message of another size would not end."""

    class Ranks:
        def gather_objects(self, shapes):
            return [shapes, shapes[:-1]]

        def take_from_first(self, tensors):
            raise AssertionError("sent")

    assert apart({"a": torch.ones(2), "b": torch.ones(3)}, Ranks()) == {}
