"""Compares a batch of several types with PyG's batch of the same graphs."""

from __future__ import annotations

from typing import Any

import torch
from support.alike import real_ids
from torch_geometric.data import Batch

import staticgraph as sg

from .equal import equal


def check_typed_batch(batch: sg.StaticBatch, graphs: list[Any]) -> list[int]:
    """Compares a batch with PyG's batch of the same graphs; returns their numbers."""
    ids = real_ids(batch)
    assert batch.graph_ids[len(ids) :].eq(-1).all()
    assert batch.graph_mask[: len(ids)].all(), "real graphs come first"
    nodes, relations = graphs[0].metadata()
    real = {kind: sum(graphs[i][kind].num_nodes for i in ids) for kind in nodes}
    real |= {kind: sum(graphs[i][kind].num_edges for i in ids) for kind in relations}
    masks = {**batch.node_masks, **batch.edge_masks}
    assert set(masks) == set(real)
    for kind, mask in masks.items():
        assert mask[: real[kind]].all(), f"real rows of {kind} come first"
        assert not mask[real[kind] :].any(), f"padding of {kind} is none"
    _check_padding(batch, real, len(ids))
    if not ids:
        return ids
    theirs = Batch.from_data_list([graphs[i] for i in ids])
    for kind in real:
        for name, value in theirs[kind].items():
            if name == "ptr":
                equal(batch[kind].ptr[: len(ids) + 1], value, f"{kind} ptr")
                continue
            at = 1 if name == "edge_index" else 0
            ours = batch[kind][name]
            equal(ours.narrow(at, 0, value.shape[at]), value, f"{kind} {name}")
    for name in ("y", "notes"):
        if name in theirs._global_store:
            equal(batch[name][: len(theirs[name])], theirs[name], name)
    for found, graph in zip(batch.to_data_list(), (graphs[i] for i in ids), strict=True):
        for mine, store in zip(found.stores, graph.stores, strict=True):
            own = set(mine.keys()) - {"num_nodes"}
            assert own == set(store.keys()), f"{found} for {graph}"
            for name, value in store.items():
                equal(mine[name], value, f"{name}, unpadded")
        assert all(found[kind].num_nodes == graph[kind].num_nodes for kind in nodes)
    return ids


def _check_padding(batch: sg.StaticBatch, real: dict[Any, int], graphs: int) -> None:
    """Padding edges join padding nodes of their types, which belong to padding graphs."""
    for kind in batch.node_types:
        owners = batch[kind].batch
        assert bool((owners.diff() >= 0).all()), "graphs are in order"
        padding = owners[real[kind] :]
        assert padding.numel() > 0, f"no node of {kind} is kept for padding"
        assert int(padding.min()) >= graphs
        assert int(padding.max()) < batch.num_graphs
        assert int(batch[kind].ptr[-1]) == len(owners)
    for relation in batch.edge_types:
        index = batch[relation].edge_index
        assert bool((index[1].diff() >= 0).all()), "edges are by destination"
        for ends, kind in zip(index[:, real[relation] :], relation[::2], strict=True):
            inside = (ends >= real[kind]) & (ends < batch[kind].num_nodes)
            assert bool(torch.all(inside)), f"a padding edge of {relation} is at a real node"
