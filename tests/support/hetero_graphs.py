"""Molecules as heterogeneous graphs: atoms, bonds and ring systems as nodes of three types.

Real structures with the difficult cases of types: many molecules have no ring, single atoms also
have no bond, and few ring systems are bonded to the same atom as another one.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch_geometric.data import HeteroData

IN_RING = 8  # OGB's ninth atom feature


def from_molecule(data, dtype=torch.float32) -> HeteroData:
    """Converts one molecule.

    Each bond is one node between its atoms; ring systems are the connected components of the atoms
    in rings.
    """
    source, target = data.edge_index
    once = source < target
    ends = data.edge_index[:, once]
    bonds = torch.arange(ends.size(1))
    ring = data.x[:, IN_RING].bool()
    inside = ring[source] & ring[target]
    atoms = data.num_nodes
    pairs = data.edge_index[:, inside].numpy()
    graph = coo_matrix((np.ones(pairs.shape[1]), pairs), shape=(atoms, atoms))
    label = torch.from_numpy(connected_components(graph, directed=False)[1]).long()
    systems, of_atom = torch.unique(label[ring], return_inverse=True)
    member = torch.stack([torch.where(ring)[0], of_atom])
    near = torch.zeros(len(systems), atoms)  # atoms outside of rings that a system is bonded to
    leaving = ring[source] & ~ring[target]
    of_source = torch.full((atoms,), 0).index_copy(0, member[0], member[1])
    near[of_source[source[leaving]], target[leaving]] = 1
    beside = (near @ near.t()).fill_diagonal_(0).nonzero().t()

    hetero = HeteroData()
    hetero["atom"].x = data.x.to(dtype)
    hetero["atom"].y = (data.x[:, :1] == 5).to(dtype)
    hetero["bond"].x = data.edge_attr[once].to(dtype)
    hetero["ring"].x = torch.bincount(of_atom, minlength=len(systems))[:, None].to(dtype)
    hetero["atom", "bonded", "atom"].edge_index = data.edge_index
    hetero["atom", "bonded", "atom"].edge_attr = data.edge_attr.to(dtype)
    hetero["atom", "ends", "bond"].edge_index = torch.stack([ends.flatten(), bonds.repeat(2)])
    hetero["bond", "joins", "atom"].edge_index = torch.stack([bonds.repeat(2), ends.flatten()])
    hetero["atom", "within", "ring"].edge_index = member
    hetero["ring", "has", "atom"].edge_index = member.flip(0)
    hetero["ring", "beside", "ring"].edge_index = beside.contiguous()
    hetero.y = data.y.to(dtype)
    return hetero


def by_destination(data: HeteroData) -> HeteroData:
    """Returns the graph with each type's edges sorted by destination, independently computed."""
    data = data.clone()
    for kind in data.edge_types:
        order = sorted(
            range(data[kind].edge_index.size(1)), key=lambda e: int(data[kind].edge_index[1, e])
        )
        for name, value in list(data[kind].items()):
            data[kind][name] = value[:, order] if name == "edge_index" else value[order]
    return data
