"""Strings and other objects of graphs stay on the host: batches, files and graphs read back have
them as in PyG; attributes that cannot be kept are named."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.alike import real_ids
from torch_geometric.data import Batch, Data

import staticgraph as sg
from staticgraph.errors import StoreCorrupt

WORDS = ["CC", "C1=CC=CC=C1", "ä", "", "N#N"]


def graphs(**more) -> list[Data]:
    return [
        Data(
            x=torch.full((number + 1, 1), float(number)),
            edge_index=torch.zeros(2, 1, dtype=torch.int64),
            smiles=word,
            names=[f"{word}{k}" for k in range(number)],
            info={"id": number, "tags": (1, None, "t")},
            **{name: values[number] for name, values in more.items()},
        )
        for number, word in enumerate(WORDS)
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_has_them_in_the_order_of_its_graphs(workers):
    store = sg.GraphStore.from_pyg(graphs())
    plan = sg.plan_buckets(store, batch_size=2)
    seen = 0
    for batch in sg.StaticLoader(store, plan, shuffle=True, seed=4, num_workers=workers):
        ids = real_ids(batch)
        expected = Batch.from_data_list([graphs()[i] for i in ids])
        assert batch.smiles == expected.smiles == [WORDS[i] for i in ids]
        assert batch["names"] == expected.names
        assert [info["id"] for info in batch.info] == ids
        assert "smiles" in batch.clone().cpu()
        assert [data.smiles for data in batch.to_data_list()] == batch.smiles
        seen += len(ids)
    assert seen == len(WORDS)


def test_a_store_on_the_device_has_them_too():
    store = sg.GraphStore.from_pyg(graphs())
    loader = sg.StaticLoader(store.to("cpu"), sg.plan_buckets(store, batch_size=2))
    assert [word for batch in loader for word in batch.smiles] == WORDS


def test_a_folder_keeps_them(tmp_path):
    sg.GraphStore.from_pyg(graphs()).save(tmp_path / "s")
    store = sg.GraphStore.load(tmp_path / "s")
    assert [data.smiles for data in store] == WORDS
    assert store[3].names == graphs()[3].names
    assert store[3].info == {"id": 3, "tags": [1, None, "t"]}, "tuples come back as lists"
    path = tmp_path / "s" / "objects.smiles.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(StoreCorrupt, match=r"objects\.smiles\.npy"):
        sg.GraphStore.load(tmp_path / "s")


def test_they_are_no_part_of_a_plan():
    with_text, without = graphs(), [data.clone() for data in graphs()]
    for data in without:
        del data.smiles
    plan = sg.plan_buckets(sg.GraphStore.from_pyg(with_text), batch_size=2)
    batch = next(iter(sg.StaticLoader(sg.GraphStore.from_pyg(without), plan)))
    assert "smiles" not in batch
    with pytest.raises(AttributeError, match="the batch has no 'smiles'"):
        _ = batch.smiles


def test_a_graph_without_has_none():
    some = graphs()
    del some[1].smiles
    store = sg.GraphStore.from_pyg(some)
    assert "smiles" not in store[1]
    assert store[2].smiles == WORDS[2]
    assert sg.StaticBatch.of(store, [1, 2], (9, 12, 4)).smiles == [None, WORDS[2]]


# ---------------------------------------------------------------- one line says it


class Opaque:
    pass


def said(capsys, data, **options) -> str:
    sg.GraphStore.from_pyg(data, **options)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 1
    return lines[0] if lines else ""


def test_the_summary_names_what_was_kept_and_what_was_dropped(capsys):
    data = graphs(thing=[Opaque()] * 5, layout=["a"] * 5, half=[torch.ones(1), "b", "b", "b", "b"])
    for graph in data:
        del graph.half
    line = said(capsys, data)
    assert line.startswith("list: 5 graphs, ")
    assert "x float32 [1] per node" in line
    assert "on the host: smiles, names, info" in line
    assert "dropped: " in line
    assert "thing (a Opaque that is neither text nor numbers)" in line
    assert "layout (every batch has an attribute of this name)" in line
    assert said(capsys, data, progress=False) == ""
    assert "smiles" not in said(capsys, data, exclude=["smiles"])


class Doubled:
    def __call__(self, data):
        data.x = data.x * 2
        return data


class Jitter:
    def __call__(self, data):
        data.x = data.x + torch.rand(1) + np.random.rand()  # noqa: NPY002
        return data


class Set(list):
    def __init__(self, items, transform):
        super().__init__(items)
        self.transform = transform

    def __getitem__(self, number):
        return self.transform(super().__getitem__(number).clone())


def test_a_transform_is_named_and_a_random_one_warned_of(capsys, recwarn):
    assert "applied once: Doubled" in said(capsys, Set(graphs(), Doubled()))
    assert not [w for w in recwarn if "transform" in str(w.message)]
    for transform, match in (
        (Jitter(), r"Jitter.* draws x again each time .*StaticLoader\(trans"),
        (_draws_from_torch, "_draws_from_torch draws x again each time"),
    ):
        with pytest.warns(UserWarning, match=match):
            sg.GraphStore.from_pyg(Set(graphs(), transform), progress=False)


def test_the_look_at_a_transform_draws_nothing():
    torch.rand(5)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="again each time"):
        sg.GraphStore.from_pyg(Set(graphs(), _draws_from_torch), progress=False)
    assert torch.equal(torch.rand(1), expected), "five graphs drew five numbers"


def _draws_from_torch(data):
    data.x = data.x + torch.rand(1)
    return data
