"""A LightningModule's own steps over batches of fixed shape: the results of plain PyG, with
Lightning's own checkpoints, resume, logging, precision and processes."""

from __future__ import annotations

import copy
import os
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.alike import assert_same_state, update, warned_of
from support.arena import ArenaRecorder
from support.examples import EXAMPLES
from support.lightning_modules import InParts, Variational, Whole, make_module
from support.ranks import on_ranks
from torch import nn
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, HeteroData

import staticgraph as sg
from staticgraph.batches.batch.real_batch import RealBatch

pytest.importorskip("lightning", reason="the extra 'lightning' is not installed")
import lightning.pytorch as pl

from staticgraph.lightning import StaticDataModule, StaticGraphs

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*litlogger")


def data_of(esol, **options):
    splits = {"train": range(200), "val": range(200, 260), "predict": range(260, 300)}
    return StaticDataModule(esol, batch_size=32, splits=splits, seed=3, **options)


def trainer_of(tmp_path, *callbacks, mode="eager", recording=None, plan=None, **options):
    static = StaticGraphs(mode=mode, recording=recording, plan=plan)
    options = {"max_epochs": 2, "logger": False, "limit_val_batches": 0, **options}
    return pl.Trainer(
        accelerator="cpu",
        devices=options.pop("devices", 1),
        default_root_dir=tmp_path,
        callbacks=[static, *callbacks],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit_an_epoch(module, data, tmp_path):
    trainer_of(tmp_path, max_epochs=1).fit(module, datamodule=data)


def by_hand(module, data, epochs=2):
    """Trains with plain PyG on the same graphs in the same order, in a hand-written loop."""
    module.train()
    optimizer = module.configure_optimizers()
    module.log = lambda *_, **__: None
    if not isinstance(data, list):
        data = sg.StaticLoader(
            data.store,
            data.plan,
            indices=data.split("train"),
            shuffle=True,
            seed=3,
            **data._options,
        )
    for _ in range(epochs):
        for batch in data:
            graphs = batch if isinstance(batch, list) else batch.to_data_list()
            loss = module.training_step(Batch.from_data_list(graphs), 0)
            update(optimizer, loss)
    return module


def assert_same_losses(module, twin, rtol=1e-4):
    assert torch.allclose(torch.stack(module.losses), torch.stack(twin.losses), rtol=rtol)


@pytest.mark.slow
def test_a_users_own_loader_gives_what_plain_pyg_gives(esol, tmp_path):
    graphs = esol[:60]
    plan = sg.plan_stream(graphs, batch_size=8, buckets=1)
    module, twin = make_module(Whole), make_module(Whole)
    trainer = trainer_of(tmp_path, plan=plan, max_epochs=1)
    trainer.fit(module, DataLoader(graphs, 8, collate_fn=sg.Padder(plan)))
    by_hand(twin, [graphs[k : k + 8] for k in range(0, 60, 8)], epochs=1)
    assert_same_losses(module, twin)


@pytest.mark.filterwarnings("error:.*cannot be told", "error:.*padding rows take part")
@pytest.mark.parametrize(("kind", "size"), [(Whole, 32), (InParts, 32), (Whole, 3)])
def test_a_training_step_as_it_is_gives_what_plain_pyg_gives(esol, tmp_path, kind, size):
    """Packed as well, in epochs of 70 and 72 batches, after which rounding has grown."""
    module, twin = make_module(kind), make_module(kind)
    data = data_of(esol, plan=sg.plan_buckets(esol, size), exact=size > 3)
    trainer_of(tmp_path).fit(module, datamodule=data)
    by_hand(twin, data)
    assert_same_losses(module, twin, 3e-3 / size)
    assert_same_state(module, twin, rtol=0.03 / size, atol=3e-4 / size)
    assert "forward" not in vars(module), "put back afterwards"


def test_an_epoch_of_more_batches_than_lightning_counted_is_refused(esol, tmp_path):
    """It would leave out the last; the second epoch splits a batch."""
    plan = sg.BucketPlan((sg.Capacity(53, 159, 5, 39),), batch_size=4)
    with pytest.raises(ValueError, match=r"51 batches.*Lightning counted 50 before"):
        trainer_of(tmp_path).fit(make_module(Whole), datamodule=data_of(esol, plan=plan))


@pytest.mark.parametrize("rows", ["padded", "real"])
def test_a_term_over_padding_rows_is_found_by_the_epoch_that_adds_it(esol, tmp_path, rows):
    module = Variational(rows)
    trainer = trainer_of(tmp_path, limit_train_batches=2)
    if rows == "real":
        trainer.fit(module, datamodule=data_of(esol))
        return
    with pytest.raises(
        sg.errors.PaddingLeaks, match=r"the loss is off[\s\S]*StaticGraphs\(mode='eager'\)"
    ):
        trainer.fit(module, datamodule=data_of(esol))
    assert trainer.current_epoch == 1
    assert "forward" not in vars(module.encode)


def test_recorded_and_with_accumulation(esol, tmp_path):
    module, twin, data = make_module(Whole), make_module(Whole), data_of(esol)
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    recording = sg.Recording(recorder=ArenaRecorder)
    trainer_of(tmp_path, mode="cuda-graph", recording=recording, **options).fit(
        module, datamodule=data
    )
    trainer_of(tmp_path, **options).fit(twin, datamodule=data)
    assert_same_losses(module, twin)


def test_logging_and_predictions_know_real_graphs_alone(esol, tmp_path):
    module, data = make_module(Whole), data_of(esol)
    trainer = trainer_of(tmp_path, max_epochs=1, limit_val_batches=1.0)
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics["loss"] == pytest.approx(
        float(_weighted(module.losses, [32] * 6 + [8])), rel=1e-5
    )
    module.eval()
    graphs = esol[200:260]
    whole = Batch.from_data_list(graphs)
    with torch.no_grad():
        expected = F.l1_loss(module(whole), whole.y)
    trainer.validate(module, datamodule=data, verbose=False)
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(float(expected), rel=1e-4)
    data.plan = sg.plan_buckets(esol, num_buckets=3, graphs=12)
    found = trainer.predict(module, datamodule=data)
    ids = torch.cat([ids for ids, _ in found])
    outs = torch.cat([out for _, out in found])
    assert ids.tolist() == list(range(260, 300))
    with torch.no_grad():
        expected = module(Batch.from_data_list(esol[ids]))
    assert torch.allclose(outs, expected, atol=1e-5)


def _weighted(losses, sizes):
    sizes = torch.tensor(sizes[: len(losses)], dtype=torch.float32)
    return (torch.stack(losses) * sizes).sum() / sizes.sum()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", [3, 7, 10, 0])
def test_a_checkpoint_resumes_in_mid_epoch(esol, tmp_path, step):
    """The same losses as without a stop, whether after three batches, an epoch or in the second, or
    a fit of an epoch (0)."""
    whole, first, second = (make_module(Whole) for _ in range(3))
    trainer_of(tmp_path).fit(whole, datamodule=data_of(esol))
    path = tmp_path / "stop.ckpt"

    class Stopped(Exception):
        pass

    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == step:
                trainer.save_checkpoint(path)
                raise Stopped

    trainer = trainer_of(tmp_path, Stop(), max_epochs=2 if step else 1)
    with suppress(Stopped):
        trainer.fit(first, datamodule=data_of(esol))
    if not step:
        trainer.save_checkpoint(path)
    trainer_of(tmp_path).fit(second, datamodule=data_of(esol), ckpt_path=path)
    losses = torch.stack([*first.losses, *second.losses])
    assert torch.equal(losses, torch.stack(whole.losses))
    assert_same_state(whole, second)


class Views(Whole):
    """Two views of a batch, as in contrastive learning, made by a clone and by a copy."""

    def training_step(self, batch, batch_idx):
        first, second = batch.clone(), copy.copy(batch)
        first.x, second.x = batch.x.float() * 0.5, batch.x.float() * 2
        one, two = self(first), self(second)
        loss = F.mse_loss(one, two) + F.mse_loss(one, first.y)
        self.losses.append(loss.detach())
        return loss


class FewerEdges(Whole):
    """Removes bonds before the model is called: no bucket has that number of edges."""

    def training_step(self, batch, batch_idx):
        kept = batch.edge_attr[:, 0] > 0
        batch.edge_index, batch.edge_attr = batch.edge_index[:, kept], batch.edge_attr[kept]
        loss = F.mse_loss(self(batch), batch.y)
        self.losses.append(loss.detach())
        return loss


@pytest.mark.parametrize("kind", [Views, FewerEdges])
def test_a_batch_is_copied_and_changed_as_pygs(esol, tmp_path, kind):
    module, twin, data = make_module(kind), make_module(kind), data_of(esol)
    with warned_of("runs as plain PyG") as told:
        fit_an_epoch(module, data, tmp_path)
    assert len(told) == (kind is FewerEdges)
    by_hand(twin, data, epochs=1)
    assert_same_losses(module, twin)


def test_what_is_set_on_a_type_is_what_a_model_gets():
    graphs = []
    for number in range(4):
        graph = HeteroData()
        graph["a"].x, graph["b"].x = torch.ones(2 + number, 3), torch.ones(1, 2)
        graph["a", "to", "b"].edge_index = torch.tensor([[0, 1], [0, 0]])
        graphs.append(graph)
    store = sg.GraphStore.from_pyg(graphs)
    plan = sg.plan_buckets(store, batch_size=2)
    batch = RealBatch(next(iter(sg.StaticLoader(store, plan))))
    assert batch.x_dict["a"].sum() > 0
    batch["a"].x = batch["a"].x * 2
    assert (batch.x_dict["a"] == 2).all()
    assert (batch.whole().x_dict["a"][: len(batch["a"].x)] == 2).all()
    assert (batch.clone()["a"].x == 2).all()


def test_values_of_a_call_are_told_apart_and_too_many_are_no_runners(esol, tmp_path):
    class Part(nn.Module):
        def forward(self, x, power):
            assert isinstance(power, (bool, int, float))
            self.seen.append(type(power))
            return x.float() * power

        seen: list = []  # noqa: RUF012

    class Odd(Whole):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def training_step(self, batch, batch_idx):
            values = [1, True, 1.0, *(1.0 + k / 8 + batch_idx for k in range(1, 8))]
            for value in values:
                found = self.part(batch.x, value)
                assert torch.equal(found, batch.x.float() * value)
                assert self.part.seen[-1] is type(value)
            self.calls = vars(self.part)["forward"]
            self.most = max(getattr(self, "most", 0), len(self.calls._runners))
            return self(batch).mean()

    module, data = make_module(Odd), data_of(esol)
    with pytest.warns(UserWarning, match=r"different sets of values \(now 1.75\)"):
        fit_an_epoch(module, data, tmp_path)
    assert module.most == 8


def test_a_copied_module_calls_itself(esol, tmp_path):
    """Callbacks that average weights or keep the best model copy it during training."""
    copies = []

    class Copy(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            if not copies:
                pl_module.__dict__["_trainer"], kept = None, pl_module._trainer
                copies.append((copy.deepcopy(pl_module), copy.deepcopy(pl_module.state_dict())))
                pl_module.__dict__["_trainer"] = kept

    trainer_of(tmp_path, Copy()).fit(make_module(Whole), datamodule=data_of(esol))
    copied, state = copies[0]
    other = make_module(Whole)
    other.load_state_dict(state)
    data = Batch.from_data_list(esol[:5])
    assert torch.allclose(copied.eval()(data), other.eval()(data), atol=1e-6)


class Seen(pl.Callback):
    """The numbers of the graphs that a process trained on."""

    def __init__(self):
        self.graphs = []

    def on_train_batch_start(self, trainer, module, batch, index):
        self.graphs.extend(batch.graph_ids.tolist())


def _trained_on_rank() -> tuple[dict[str, torch.Tensor], list[int]]:
    """Trains on one of two processes that were started outside of Lightning, as by torchrun."""
    os.environ.update(LOCAL_RANK=str(dist.get_rank()), NODE_RANK="0", WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK=str(dist.get_rank()))
    esol = sg.datasets.open(EXAMPLES / "esol.npz")
    data = StaticDataModule(esol, batch_size=16, splits={"train": range(128)})
    module, seen = make_module(Whole), Seen()
    trainer = trainer_of(None, seen, devices=2, strategy="ddp", max_epochs=1)
    trainer.fit(module, datamodule=data)
    return module.state_dict(), seen.graphs


@pytest.mark.slow
def test_two_processes_train_one_model():
    """On gloo: the ranks take different graphs of each epoch and end with the same parameters."""
    (one, seen), (two, others) = on_ranks(2, _trained_on_rank)
    assert sorted(seen + others) == list(range(128))
    for name, _ in Whole().named_parameters():
        assert torch.equal(one[name], two[name]), name
        assert not torch.equal(one[name], make_module(Whole).state_dict()[name]), name
