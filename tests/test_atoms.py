"""Neighbours of atoms in fixed shape: compared with all pairs over all images."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staticgraph as sg
from staticgraph import atoms

pytest.importorskip("vesin")


def brute_force(pos, cell, pbc, graph, cutoff):
    """All edges as tuples of source, destination and image, by comparing all pairs of atoms."""
    edges = set()
    for which in range(len(cell)):
        members = np.flatnonzero(graph == which)
        spread = np.ptp(pos[members], axis=0).sum() + cutoff
        reach = [0, 0, 0]
        for axis in range(3):
            if pbc[which][axis]:
                # No image farther away than this along a vector can be within the cutoff.
                full = np.where(pbc[which][:, None], cell[which], np.eye(3) * 1e3)
                height = 1 / np.linalg.norm(np.linalg.inv(full)[:, axis])
                reach[axis] = int(np.ceil(spread / height)) + 1
        for image in itertools.product(*(range(-each, each + 1) for each in reach)):
            moved = pos[members] + np.array(image) @ np.where(pbc[which][:, None], cell[which], 0)
            apart = np.linalg.norm(moved[:, None] - pos[members][None], axis=-1)
            for source, target in zip(*np.nonzero(apart < cutoff), strict=True):
                if source != target or any(image):
                    edges.add((members[source], members[target], image))
    return edges


def edges_of(near):
    columns = (*near.edge_index[:, near.mask], *near.shift[near.mask].T)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    listed = [(a, b, tuple(int(s) for s in shift)) for a, b, *shift in rows]
    assert len(set(listed)) == len(listed)
    return set(listed)


@st.composite
def structures(draw):
    """One to three structures of up to five atoms, cells skewed and thin, atoms outside of them."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    graph = np.repeat(np.arange(len(sizes)), sizes)
    cell = random.normal(size=(len(sizes), 3, 3)) * 0.4 + 1.5 * np.eye(3)
    cell[:, draw(st.integers(0, 2))] *= draw(st.sampled_from([0.5, 1.0, 3.0]))
    pbc = random.random((len(sizes), 3)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    pos = random.normal(size=(len(graph), 3)) * draw(st.sampled_from([0.3, 3.0]))
    return pos, cell, pbc, graph, draw(st.sampled_from([0.4, 1.3, 2.5]))


@settings(max_examples=60)
@given(structures())
def test_both_ways_find_the_pairs_of_all_images(structure):
    pos, cell, pbc, graph, cutoff = structure
    expected = brute_force(pos, cell, pbc, graph, cutoff)
    padded = np.concatenate([pos, np.full((2, 3), 1e6)])
    owner = torch.tensor(np.append(graph, [len(cell), len(cell)]))
    cells = torch.tensor(np.concatenate([cell, np.zeros((1, 3, 3))]))
    periodic = torch.tensor(np.concatenate([pbc, np.zeros((1, 3), bool)]))
    mask = torch.arange(len(padded)) < len(pos)
    images = atoms.images_within(cell, pbc, cutoff)
    for block in (None, images):
        near = atoms.neighbours(
            torch.tensor(padded),
            cells,
            periodic,
            owner,
            cutoff=cutoff,
            capacity=len(expected) + 3,
            mask=mask,
            images=block,
        )
        assert edges_of(near) == expected
        assert int(near.count) == len(expected) == int(near.mask.sum())
        assert near.edge_index[1, near.mask].diff().ge(0).all(), "in order of destination"
        assert (near.edge_index[:, ~near.mask] >= len(pos)).all(), "padding joins padding"
        length = near.vectors(torch.tensor(padded), cells, owner)[near.mask].norm(dim=1)
        assert (length < cutoff).all()


def test_too_many_pairs_are_an_error_and_too_few_images_as_well():
    pos = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < 5
    with pytest.raises(sg.GraphTooLarge, match="20 pairs of atoms are within 9, and capacity=19"):
        atoms.neighbours(pos, cutoff=9.0, capacity=19, mask=mask)
    assert int(atoms.neighbours(pos, cutoff=9.0, capacity=20, mask=mask).count) == 20
    cell, images = torch.eye(3)[None], (1, 1, 1)
    with pytest.raises(sg.GraphTooLarge, match="images= is too small"):
        atoms.neighbours(pos, cell, cutoff=1.5, capacity=999, mask=mask, images=images)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pos": torch.rand(6, 2)}, r"pos has shape \[6, 2\]"),
        ({"cell": torch.eye(3)}, r"cell has shape \[3, 3\]: expected \[G, 3, 3\]"),
        ({"graph": torch.zeros(4, dtype=torch.long)}, "graph has 4 rows, and pos has 6"),
        ({"pbc": torch.ones(1, 3, dtype=torch.bool)}, "there is no cell"),
    ],
)
def test_a_wrong_shape_is_named(change, says):
    given_ = {"pos": torch.rand(6, 3)} | change
    with pytest.raises(ValueError, match=says):
        atoms.neighbours(**given_, cutoff=1.0, capacity=9)
