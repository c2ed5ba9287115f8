"""Incomplete or inconsistent data is refused by name, never rounded, dropped or filled in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.examples import EXAMPLES
from torch.nn import functional as F
from torch_geometric.data import Data, HeteroData

import staticgraph as sg
from staticgraph import datasets
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import BadGraph
from staticgraph.packing.choose_packing import pack_histogram
from staticgraph.plans.plan import BucketPlan
from staticgraph.schema import Field, Schema
from staticgraph.sizes.capacity import Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.whole_numbers import pointer_dtype
from staticgraph.steps.loss.mean_loss import mean_loss

NONE = np.empty(0, np.int64)


def esol() -> dict[str, np.ndarray]:
    with np.load(EXAMPLES / "esol.npz") as archive:
        return {key: archive[key] for key in archive.files}


def opened(tmp_path: Path, **changed: np.ndarray) -> sg.GraphStore:
    np.savez(tmp_path / "m.npz", **{**esol(), **changed})
    return datasets.open(tmp_path / "m.npz")


# ---------------------------------------------------------------------- lengths


@pytest.mark.parametrize("length", [3, 1127, 1129])
def test_a_split_of_another_length_than_the_data_is_refused(tmp_path, length):
    with pytest.raises(BadGraph, match=f"'split' has {length:,} entries for 1,128 graphs"):
        opened(tmp_path, split=np.zeros(length, np.int8))


@pytest.mark.parametrize("code", [3, -1, 0.5])
def test_a_split_of_no_meaning_is_refused(tmp_path, code):
    split = np.zeros(1128)
    split[7] = code
    with pytest.raises(BadGraph, match=f"'split' of graph 7 is {float(code)}; 0, 1 and 2 mean"):
        opened(tmp_path, split=split)


def test_labels_that_only_divide_among_the_graphs_are_refused(tmp_path):
    with pytest.raises(BadGraph, match="'label' has 2,256 entries for 1,128 graphs"):
        opened(tmp_path, label=np.zeros(2256, np.float32))


def test_a_mask_is_a_split_and_one_of_another_length_is_not():
    store = datasets.open(EXAMPLES / "esol.npz")
    mask = np.arange(1128) < 5
    assert store.with_splits(few=mask).splits["few"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(BadGraph, match=r"split 'few' of esol is a mask of shape \[3\] for 1,128"):
        store.with_splits(few=mask[:3])
    with pytest.raises(BadGraph, match=r"entry 1 is 1.5, which is not a whole number"):
        store.with_splits(few=[0, 1.5])


# ---------------------------------------------------------------------- whole numbers


def test_fractions_of_nodes_are_refused():
    with pytest.raises(BadGraph, match=r"num_nodes of data: entry 1 is 2.7"):
        sg.GraphStore.from_arrays(np.array([1, 2.7]), np.array([0, 0]), NONE, NONE, {})
    with pytest.raises(BadGraph, match=r"num_edges of data: entry 0 is 0.5"):
        sg.GraphStore.from_arrays(np.array([1]), np.array([0.5]), NONE, NONE, {})
    with pytest.raises(BadGraph, match=r"graph 1: num_nodes: entry 0 is 2.7"):
        sg.GraphStore.from_pyg([Data(num_nodes=3), Data(num_nodes=2.7)])
    hetero = HeteroData()
    hetero["atom"].num_nodes = 2.7
    with pytest.raises(BadGraph, match=r"graph 0: num_nodes: entry 0 is 2.7"):
        sg.GraphStore.from_pyg([hetero])
    with pytest.raises(ValueError, match=r"sizes of graphs: entry 0 is 2.7"):
        sg.plan_buckets(np.array([[2.7, 4.0]]), batch_size=1)
    with pytest.raises(ValueError, match=r"indices: entry 0 is 0.5"):
        sg.StaticLoader(
            datasets.open(EXAMPLES / "esol.npz"), BucketPlan.of([(500, 900, 9)], 4), indices=[0.5]
        )


def test_features_of_atoms_are_not_rounded(tmp_path):
    features = esol()["atom_feat"].astype(np.float64)
    features[0, 0] = 6.5
    with pytest.raises(BadGraph, match=r"atom_feat: entry 0 is 6.5"):
        opened(tmp_path, atom_feat=features)


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("smiles,y\nC,1\n,2\n", "line 3: the SMILES is empty; fill the cell, or drop the row"),
        ("smiles,y\nC,1\n  ,2\n", "line 3: the SMILES is empty"),
        ("smiles,y,y\nC,1,2\n", "has the column 'y' more than once"),
        ("smiles,y,SMILES \nC,1,O\n", "has the column 'smiles' more than once"),
        ("smiles,y,z\nC,1,2\nO,1\n", "line 3: 2 cells where the header has 3 columns"),
        ("smiles,y\nC,1\n\nC,O,1\n", "line 4: 3 cells where the header has 2 columns"),
        ("smiles,y\nC,1\n\n\nCXX,1\n", "line 5: RDKit cannot read the SMILES 'CXX'; fix or drop"),
        ("smiles,y\nC,1\nC,1e50\n", "graph 1 has the label 1e+50, which float32 does not hold"),
    ],
)
def test_rows_of_a_table_that_say_too_little_or_too_much(tmp_path, table, message):
    pytest.importorskip("rdkit")
    (tmp_path / "m.csv").write_text(table)
    with pytest.raises(BadGraph) as caught:
        datasets.open(tmp_path / "m.csv")
    assert message in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    pytest.importorskip("rdkit")
    (tmp_path / "m.csv").write_text("smiles,y\nC,1\n", encoding="utf-8-sig")
    assert len(datasets.open(tmp_path / "m.csv")) == 1
    (tmp_path / "h.csv").write_text("num_nodes,num_edges,count\n3,4,5\n", encoding="utf-8-sig")
    assert SizeHistogram.from_csv(tmp_path / "h.csv").components == ("nodes", "edges")


def test_a_histogram_with_a_column_twice_is_refused(tmp_path):
    (tmp_path / "h.csv").write_text("num_nodes,num_nodes,count\n3,4,5\n")
    with pytest.raises(ValueError, match="the column 'num_nodes' appears twice"):
        SizeHistogram.from_csv(tmp_path / "h.csv")


# ---------------------------------------------------------------------- labels


def test_an_infinite_label_beside_a_missing_one_stays_infinite_in_a_step():
    labels = [float("inf"), float("nan"), 1.0]
    graphs = [Data(x=torch.ones(2, 1), y=torch.tensor([[y]])) for y in labels]
    store = sg.GraphStore.from_pyg(graphs)
    loader = sg.StaticLoader(store, BucketPlan.of([(10, 2, 5)], 3))
    (batch,) = list(loader)
    seen = []

    def loss(out, batch):
        seen.append(batch.y[:3, 0].tolist())
        return F.l1_loss(out, batch.y, reduction="none")

    out = torch.zeros_like(batch.y)
    assert mean_loss(loss, out, batch) == float("inf")
    assert seen == [[float("inf"), 0.0, 1.0]]
    finite = batch.replace(y=torch.where(torch.isinf(batch.y), 4.0, batch.y))
    assert mean_loss(loss, out, finite) == (4 + 1) / 2


# ---------------------------------------------------------------------- numbers beyond 64 bits


def test_counts_near_the_end_of_64_bits_are_refused_or_right():
    with pytest.raises(ValueError, match="scale the counts down"):
        SizeHistogram(np.array([[3, 4]]), np.array([2**63 - 1]))
    with pytest.raises(ValueError, match="scale the counts down"):
        SizeHistogram(np.array([[3, 4], [5, 6]]), np.array([2**62 - 1, 2**62 - 1]))
    packing = pack_histogram(SizeHistogram(np.array([[3, 4]]), np.array([2**59])), (2**40, 2**40))
    assert (packing.efficiency > 0).all()
    assert (packing.efficiency <= 1).all()
    wide = pack_histogram(SizeHistogram(np.array([[3, 4]]), np.array([10])), (2**62, 2**62))
    assert (wide.efficiency > 0).all()
    assert wide.num_packs == 1


def test_a_plan_of_more_graphs_than_can_be_drawn_is_refused():
    many = SizeHistogram(np.array([[3, 4]]), np.array([2**50]))
    with pytest.raises(ValueError, match="counts 1,125,899,906,842,624 graphs, and a plan draws"):
        sg.plan_buckets(many, batch_size=4)


def test_pointers_are_as_wide_as_the_edges_they_point_at():
    assert [pointer_dtype(edges) for edges in (0, 2**31 - 1, 2**31)] == ["int32", "int32", "int64"]
    schema = Schema((Field("x", "node", (1,), "float32"),))
    for edges, dtype in ((2**31 - 1, np.int32), (2**31, np.int64)):
        layout = SlotLayout(0, Capacity(8, edges, 4), schema, pointers=True)
        found = {entry.name: entry.dtype for entry in layout.entries}
        assert {found[name] for name in ("row_ptr", "col_ptr", "transpose")} == {np.dtype(dtype)}
