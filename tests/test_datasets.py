"""Data sets by name or path: layouts checked against plain loops, splits, and errors."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from support.command import refusal
from support.examples import EXAMPLES
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.data import BaseData

from staticgraph import GraphStore, datasets
from staticgraph.datasets.convert import convert
from staticgraph.errors import BadGraph, UnknownDataset


def raw(name: str) -> dict[str, np.ndarray]:
    with np.load(EXAMPLES / f"{name}.npz") as archive:
        return {key: archive[key] for key in archive.files}


def starts(counts: np.ndarray) -> np.ndarray:
    """Where the rows of each graph begin, and where those of the last one end."""
    return np.concatenate([[0], np.cumsum(counts.astype(int))])


# ---------------------------------------------------------------------- .npz


@pytest.mark.parametrize("name", ["hiv", "esol"])
def test_molecules_are_what_a_loop_over_bonds_gives(name):
    store, arrays = datasets.open(EXAMPLES / f"{name}.npz"), raw(name)
    nodes, bonds = starts(arrays["num_nodes"]), starts(arrays["num_bonds"])
    assert len(store) == len(arrays["num_nodes"])
    for g in [0, 1, 77, len(store) - 1]:
        edges, kinds = [], []
        for b in range(bonds[g], bonds[g + 1]):
            one, other = map(int, arrays["bonds"][:, b])
            edges += [(one, other), (other, one)]
            kinds += [arrays["bond_feat"][:, b].tolist()] * 2
        data = store[g]
        assert data.edge_index.t().tolist() == [list(pair) for pair in edges]
        assert data.edge_attr.tolist() == kinds
        assert data.x.tolist() == arrays["atom_feat"][:, nodes[g] : nodes[g + 1]].T.tolist()
        assert data.y.tolist() == [[arrays["label"][g]]]
        assert (data.x.dtype, data.edge_attr.dtype) == (torch.int64, torch.int64)
        assert data.y.dtype == torch.float32


def test_published_splits_are_kept():
    store = datasets.open(EXAMPLES / "hiv.npz")
    sizes = {name: len(ids) for name, ids in store.splits.items()}
    assert sizes == {"train": 32901, "val": 4113, "test": 4113}
    assert store.name == "hiv"
    np.testing.assert_array_equal(store.splits["val"], np.flatnonzero(raw("hiv")["split"] == 1))


@pytest.mark.parametrize("name", ["MUTAG", "PROTEINS", "NCI1"])
def test_tu_sets_are_what_a_loop_gives(name):
    store, arrays = datasets.open(EXAMPLES / f"{name}.npz"), raw(name)
    nodes, edges = starts(arrays["num_nodes"]), starts(arrays["num_edges_undirected"])
    for g in [0, 5, len(store) - 1]:
        data = store[g]
        pairs = arrays["edges"][:, edges[g] : edges[g + 1]].T.tolist()
        assert data.edge_index.t().tolist() == [p for a, b in pairs for p in ([a, b], [b, a])]
        tags = arrays["node_tag"][nodes[g] : nodes[g + 1]]
        assert data.x.argmax(1).tolist() == tags.tolist()
        assert data.x.sum(1).tolist() == [1.0] * len(tags)
        assert data.x.dtype == torch.float32
        assert (data.y.dtype, data.y.tolist()) == (torch.int64, [int(arrays["label"][g])])


def test_tu_without_node_labels_gets_ones_and_classes_count_from_zero(tmp_path):
    np.savez(
        tmp_path / "t.npz",
        num_nodes=[2, 1],
        num_edges_undirected=[1, 0],
        edges=[[0], [1]],
        label=[1, -1],
    )
    store = datasets.open(tmp_path / "t.npz")
    assert [data.x.tolist() for data in store] == [[[1.0], [1.0]], [[1.0]]]
    assert [data.y.item() for data in store] == [1, 0]


def test_very_many_node_labels_are_kept_as_numbers(tmp_path):
    """One-hot rows of 300,000 labels would take 335 GiB."""
    kinds = 300_000
    labels = np.random.default_rng(0).permutation(kinds)
    np.savez(
        tmp_path / "t.npz",
        num_nodes=[kinds - 1, 1],
        num_edges_undirected=[1, 0],
        edges=[[0], [1]],
        label=[0, 1],
        node_tag=labels * 3 + 5,
    )
    store = datasets.open(tmp_path / "t.npz")
    assert store.schema["x"].describe() == "int64 [1] per node"
    assert store.cardinality("x") == (kinds,)
    np.testing.assert_array_equal(store.columns["x"][:, 0], labels)
    assert store.nbytes < 40 * kinds


def test_labels_of_several_tasks(tmp_path):
    arrays = raw("esol") | {"label": np.full((1128, 3), np.nan, np.float32)}
    np.savez(tmp_path / "m.npz", **arrays)
    field = datasets.open(tmp_path / "m.npz").schema["y"]
    assert (field.shape, field.has_nan) == ((3,), True)


# ---------------------------------------------------------------------- splits


def test_random_splits_are_seeded_and_lose_nothing():
    one, same, other = (
        datasets.open(EXAMPLES / "esol.npz", seed=seed).splits for seed in (0, 0, 1)
    )
    assert {name: len(ids) for name, ids in one.items()} == {"train": 904, "val": 112, "test": 112}
    for name, ids in one.items():
        np.testing.assert_array_equal(ids, same[name])
        assert not np.array_equal(ids, other[name])
    np.testing.assert_array_equal(np.sort(np.concatenate(list(one.values()))), np.arange(1128))


@pytest.mark.parametrize("graphs", [1, 5, 9, 10, 11])
def test_a_small_set_trains_on_something(graphs):
    split = datasets.random_split(graphs, 0)
    assert len(split["train"]) >= 1
    assert sum(map(len, split.values())) == graphs


# ---------------------------------------------------------------------- stores and lists


class Kept(InMemoryDataset):
    """A data set written as in PyG's tutorial."""

    graphs: ClassVar[list[BaseData]]

    def __init__(self, root):
        super().__init__(root)
        self.load(self.processed_paths[0], type(self.graphs[0]))

    processed_file_names = ("graphs.pt",)

    def process(self):
        self.save(self.graphs, self.processed_paths[0])


def hetero(nodes: int) -> HeteroData:
    data = HeteroData(y=torch.rand(1, 2))
    data["atom"].x = torch.rand(nodes, 3)
    data["atom", "bond", "atom"].edge_index = torch.zeros(2, nodes, dtype=torch.long)
    return data


@pytest.mark.filterwarnings("ignore")  # PyG warns about its own file
@pytest.mark.parametrize("typed", [False, True])
def test_a_data_set_that_pyg_keeps(typed, tmp_path):
    """Opened by its root, by its file, and after conversion."""
    Kept.graphs = [
        hetero(n) if typed else Data(x=torch.rand(n, 3), y=torch.rand(1, 2), num_nodes=n)
        for n in range(1, 12)
    ]
    root = tmp_path / "mine"
    Kept(str(root))
    expected = GraphStore.from_pyg(Kept.graphs, progress=False)
    file = root / "processed" / "graphs.pt"
    convert(root, tmp_path / "store", progress=False)
    for path, name in ((root, "mine"), (file, "graphs"), (tmp_path / "store", "mine")):
        store = datasets.open(path)
        assert store.name == name
        assert store.schema == expected.schema
        for field, column in expected.columns.items():
            np.testing.assert_array_equal(store.columns[field], column)
    torch.save(Kept.graphs, root / "processed" / "second.pt")
    with pytest.raises(UnknownDataset, match=r"nor one file processed/\*\.pt"):
        datasets.open(root)


@pytest.mark.parametrize("more", [(), (Data,), ({"num_edge_labels": 0}, Data)])
def test_graphs_side_by_side_in_a_file(more, tmp_path):
    """As older PyG versions, the present one, and its TUDataset write them."""
    graphs = [Data(x=torch.rand(n, 3), y=torch.rand(1, 2)) for n in range(1, 12)]
    data, slices = InMemoryDataset.collate(graphs)
    torch.save((data.to_dict() if more else data, slices, *more), tmp_path / "g.pt")
    torch.save(tuple(graphs), tmp_path / "t.pt")
    for name in ("g", "t"):
        store = datasets.open(tmp_path / f"{name}.pt")
        assert torch.equal(store[4].x, graphs[4].x)
        assert len(store) == 11


class NotData:
    pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": 1}, "holds a dict; expected a list of torch_geometric.data.Data"),
        ([NotData()], "or holds other objects as well"),
        ([], "g is empty"),
        ((1, 2), "holds a tuple; expected a list of torch_geometric.data.Data"),
        ([torch.ones(3)], "item 0 of g is of type Tensor; expected torch_geometric.data.Data"),
    ],
)
def test_a_file_of_something_else(tmp_path, content, message):
    torch.save(content, tmp_path / "g.pt")
    with pytest.raises(BadGraph, match=message):
        datasets.open(tmp_path / "g.pt")


def test_a_file_that_is_no_torch_file(tmp_path):
    (tmp_path / "g.pt").write_bytes(b"hello")
    with pytest.raises(BadGraph, match=r"g\.pt is not a list of Data saved by torch\.save"):
        datasets.open(tmp_path / "g.pt")


# ---------------------------------------------------------------------- unknown


def test_a_name_that_comes_with_the_package(tmp_path, monkeypatch):
    """From any directory; a store at a path of the same name comes first."""
    monkeypatch.chdir(tmp_path)
    store = datasets.open("esol")
    assert len(store) == 1128
    assert set(store.splits) == {"train", "val", "test"}
    (tmp_path / "esol").mkdir()
    (tmp_path / "esol" / "report.json").touch()
    assert len(datasets.open("esol")) == 1128, "a folder of that name with something else in it"
    (tmp_path / "esol" / "report.json").unlink()
    (tmp_path / "esol").rmdir()
    GraphStore.from_pyg([store[0], store[1]]).save(tmp_path / "esol")
    assert len(datasets.open("esol")) == 2
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="chooses columns of a CSV, and esol is none"):
        datasets.open("esol", target="a")


@pytest.mark.parametrize("spec", ["hiv", "tu:", "zinc:full", "data.h5", "examples"])
def test_an_unknown_spec_lists_what_is_understood(spec, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parents[1])
    with pytest.raises(UnknownDataset) as caught:
        datasets.open(spec)
    for form, _ in datasets.SPECS:
        assert form in str(caught.value)
    assert spec in str(caught.value)


@pytest.mark.parametrize(
    "spec", ["hiv.npz", "a-store", "list.pt", "tu:PROTEINS", "ogb:ogbg-molhiv"]
)
def test_a_target_of_what_is_no_csv_is_refused(spec, tmp_path, capsys, monkeypatch):
    """The target would be ignored, and all labels trained on."""
    graphs = [Data(x=torch.rand(2, 1), edge_index=torch.zeros(2, 0).long(), y=torch.rand(1, 2))]
    GraphStore.from_pyg(graphs * 3, progress=False).save(tmp_path / "a-store")
    torch.save(graphs * 3, tmp_path / "list.pt")
    (tmp_path / "hiv.npz").symlink_to(EXAMPLES / "hiv.npz")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"target='y' chooses columns of a CSV, and {spec} is"):
        datasets.open(spec, target="y")
    assert "leave target (--target) out" in refusal(
        ["train", "--data", spec, "--target", "y"], capsys
    )


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"nowhere/mine\.npz: there is no such file"):
        datasets.open("nowhere/mine.npz")


def test_an_npz_of_another_layout_says_what_it_holds(tmp_path):
    np.savez(tmp_path / "a.npz", features=[1], num_nodes=[1])
    with pytest.raises(
        UnknownDataset, match=r"holds features, num_nodes; expected molecules \(num"
    ):
        datasets.open(tmp_path / "a.npz")
    np.savez(tmp_path / "p.npz", label=np.array([{}], dtype=object))
    with pytest.raises(UnknownDataset, match=r"is not an \.npz of plain arrays"):
        datasets.open(tmp_path / "p.npz")
