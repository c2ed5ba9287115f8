"""NeighbourSearch of atoms in fixed shape: compared with all pairs over all images."""

from __future__ import annotations

import copy
import itertools
import os

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.drawn import examples
from support.runners import made_runner, sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

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
        images = np.array(list(itertools.product(*(range(-each, each + 1) for each in reach))))
        shifts = images @ np.where(pbc[which][:, None], cell[which], 0)
        moved = pos[members] + shifts[:, None]
        apart = np.linalg.norm(moved[:, :, None] - pos[members], axis=-1)
        for image, source, target in zip(*np.nonzero(apart < cutoff), strict=True):
            shift = tuple(images[image].tolist())
            if source != target or any(shift):
                edges.add((members[source], members[target], shift))
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
    assume(np.linalg.norm(np.linalg.inv(cell), axis=1).max() < 5)  # flatter: millions of images
    pbc = random.random((len(sizes), 3)) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    pos = random.normal(size=(len(graph), 3)) * draw(st.sampled_from([0.3, 3.0]))
    return pos, cell, pbc, graph, draw(st.sampled_from([0.4, 1.3, 2.5]))


def with_padding(pos, cell, pbc, graph):
    """The structures as tensors, and a padding structure of two atoms."""
    return (
        torch.tensor(np.concatenate([pos, np.full((2, 3), 1e6)])),
        torch.tensor(np.concatenate([cell, np.zeros((1, 3, 3))])),
        torch.tensor(np.concatenate([pbc, np.zeros((1, 3), bool)])),
        torch.tensor([*graph, len(cell), len(cell)]),
    )


@examples(60)
@given(structures())
def test_both_ways_find_the_pairs_of_all_images(structure):
    pos, cell, pbc, graph, cutoff = structure
    expected = brute_force(pos, cell, pbc, graph, cutoff)
    padded, cells, _, owner = with_padding(pos, cell, pbc, graph)
    images = atoms.images_within(cell, pbc, cutoff)
    for block in (None, images):
        near = atoms.neighbours(
            *with_padding(pos, cell, pbc, graph),
            cutoff=cutoff,
            capacity=len(expected) + 3,
            mask=torch.arange(len(padded)) < len(pos),
            images=block,
        )
        assert edges_of(near) == expected
        assert int(near.count) == len(expected) == int(near.mask.sum())
        assert near.edge_index[1, near.mask].diff().ge(0).all(), "in order of destination"
        assert (near.edge_index[:, ~near.mask] >= len(pos)).all(), "padding joins padding"
        length = near.vectors(padded, cells, owner)[near.mask].norm(dim=1)
        assert (length < cutoff).all()


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 1.0))
def test_a_skin_keeps_a_cell_list_until_an_atom_has_moved_half_of_it(seed, skin):
    """A random walk; the oracle is a search without a skin, and at its end all pairs."""
    random, cutoff = np.random.default_rng(seed), 1.3
    graph = np.array([0, 0, 0, 1, 1])
    cell = random.normal(scale=0.2, size=(2, 3, 3)) + 1.5 * np.eye(3)
    pbc = random.random((2, 3)) < 0.5
    pos = random.normal(scale=0.5, size=(5, 3))
    search, before, builds = atoms.NeighbourSearch(cutoff, 1.0, skin=skin), None, 0
    for step in range(8):
        cell = cell * 1.01 if step == 6 else cell
        if before is None or step == 6 or np.linalg.norm(pos - before, axis=1).max() >= skin / 2:
            before, builds = pos, builds + 1
        near, expected = (
            atoms.neighbours(
                *with_padding(pos, cell, pbc, graph),
                cutoff=cutoff,
                capacity=500,
                mask=torch.arange(7) < 5,
                candidates=candidates,
            )
            for candidates in (search.candidates, None)
        )
        assert torch.equal(near.edge_index, expected.edge_index)
        assert torch.equal(near.shift, expected.shift)
        assert search.candidates.builds == builds
        searched, pos = pos, pos + random.normal(scale=skin / 8, size=pos.shape)
    assert edges_of(near) == brute_force(searched, cell, pbc, graph, cutoff)


def test_too_many_pairs_are_an_error_and_too_few_images_as_well():
    pos = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < 5
    with pytest.raises(
        sg.errors.GraphTooLarge, match="20 pairs of atoms are within 9, and capacity=19"
    ):
        atoms.neighbours(pos, cutoff=9.0, capacity=19, mask=mask)
    assert int(atoms.neighbours(pos, cutoff=9.0, capacity=20, mask=mask).count) == 20
    with pytest.raises(ValueError, match=r"20 pairs .* other 1 rows are padding, which must join"):
        atoms.neighbours(pos[:5], cutoff=9.0, capacity=21)
    cell, images = torch.eye(3)[None], (1, 1, 1)
    with pytest.raises(sg.errors.GraphTooLarge, match="images= is too small"):
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


# ---------------------------------------------------------------- in a runner's step


class Potential(nn.Module):
    """A SchNet-like model with its graph inside: energies, forces and stresses."""

    def __init__(self, per_atom, images=None, cutoff=2.5):
        super().__init__()
        self.neighbours = atoms.NeighbourSearch(cutoff, per_atom, images)
        self.species = nn.Embedding(90, 8)
        self.filter = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8))
        self.mix = nn.Linear(8, 8)
        self.energy = nn.Linear(8, 1)
        self.register_buffer("centres", torch.linspace(0, cutoff, 6))

    def forward(self, z, pos, cell, pbc, batch, num_graphs):
        pos, cell = pos.requires_grad_(), cell.requires_grad_()
        near = self.neighbours(pos, cell, pbc, batch)
        length = (near.vectors(pos, cell, batch).square().sum(1) + 1e-12).sqrt()
        source, target = near.edge_index
        spread = torch.exp(-(length[:, None] - self.centres).square())
        smooth = (1 + torch.cos(torch.pi * length / 2.5)) * near.mask
        h = self.species(z)
        message = self.mix(h)[source] * self.filter(spread) * smooth[:, None]
        h = h + torch.zeros_like(h).index_add(0, target, message).tanh()
        energy = global_add_pool(self.energy(h), batch, num_graphs)
        return energy, *forces_and_stresses(energy, pos, cell, batch)


def forces_and_stresses(energy, pos, cell, batch):
    by_pos, by_cell = torch.autograd.grad(energy.sum(), (pos, cell), create_graph=True)
    # A strain moves atoms and the cell's vectors alike.
    virial = torch.zeros_like(cell).index_add(0, batch, pos[:, :, None] * by_pos[:, None])
    virial = virial + torch.einsum("gij,gik->gjk", cell, by_cell)
    volume = torch.linalg.det(cell).abs()[:, None, None].clamp(min=1e-9)
    return -by_pos, virial / volume


def crystals(seed=0):
    """Salt, silicon and molecules: periodic along three axes, and along none."""
    from ase.build import bulk, molecule

    random = np.random.default_rng(seed)
    structures = [
        bulk("NaCl", "rocksalt", a=4.2),
        bulk("Si", "diamond", a=3.4).repeat((1, 1, 2)),
        molecule("H2O"),
        molecule("CH3CH2OH"),
    ]
    for structure in structures:
        structure.positions += random.normal(scale=0.05, size=structure.positions.shape)
    return structures


def energies_and_forces(out, batch):
    energy, forces, _ = out
    return forces.square().sum(1) + energy[batch.batch, 0].square()


EVERY = pytest.mark.skipif("EVERY_CASE" not in os.environ, reason="minutes: make test-every")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "fused", pytest.param("default", marks=EVERY)])
def test_a_step_with_neighbours_and_forces_equals_the_plain_model(mode):
    graphs = [atoms.to_data(each, torch.float64) for each in crystals()]
    sizes = atoms.sizes_within(graphs, 2.5)
    images = atoms.images_within(
        torch.cat([g.cell for g in graphs]), torch.cat([g.pbc for g in graphs]), 2.5
    )
    capacity = sg.Capacity(nodes=24, edges=4, graphs=6, max_graph_nodes=10)
    per_atom = 1.2 * sum(size[1] for size in sizes) / 24
    model = Potential(per_atom, None if mode != "default" else images).double()
    plain = copy.deepcopy(model)
    plain.neighbours.images = None
    plain.neighbours.capacity = lambda atoms: sum(size[1] for size in sizes)  # exactly
    whole = Batch.from_data_list(graphs)
    fields = (whole.z, whole.pos, whole.cell, whole.pbc, whole.batch, len(graphs))
    energy, forces, stress = out = plain(*fields)
    energies_and_forces(out, whole).mean().backward()
    expected = [p.grad for p in plain.parameters()]

    store = sg.GraphStore.from_pyg(graphs)
    runner = sgd_runner(
        model, [capacity], mode, loss=energies_and_forces, differentiable=("pos", "cell")
    )
    runner.step(next(iter(runner.loader(store, exact=False))))
    actual = [p.grad for p in model.parameters()]
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    out = runner.predict(graphs)
    torch.testing.assert_close(out[0], energy.detach(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(torch.cat(out[1]), forces.detach(), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(out[2], stress.detach(), rtol=1e-9, atol=1e-11)


class LennardJones(nn.Module):
    """Pairs of argon, as ASE's calculator computes them."""

    def __init__(self, per_atom, images=None, cutoff=8.0):
        super().__init__()
        self.neighbours = atoms.NeighbourSearch(cutoff, per_atom, images)
        self.depth = nn.Parameter(torch.tensor(0.0104))
        self.shift = (3.4 / cutoff) ** 12 - (3.4 / cutoff) ** 6

    def forward(self, pos, cell, pbc, batch, num_graphs):
        pos, cell = pos.requires_grad_(), cell.requires_grad_()
        near = self.neighbours(pos, cell, pbc, batch)
        squared = near.vectors(pos, cell, batch).square().sum(1)
        sixth = (3.4**2 / torch.where(near.mask, squared, 1.0)) ** 3
        pair = torch.where(near.mask, 2 * self.depth * (sixth.square() - sixth - self.shift), 0)
        each = torch.zeros_like(pos[:, 0]).index_add(0, near.edge_index[1], pair)
        energy = torch.zeros_like(cell[:, 0, 0]).index_add(0, batch, each)
        forces, stress = forces_and_stresses(energy, pos, cell, batch)
        return {"energy": energy, "forces": forces, "stress": stress}


def calculator_of(structures, room=1.0, nodes=40, mode="eager", **options):
    model = LennardJones(0.0).double()
    sizes = atoms.sizes_within(structures, 8.0)
    model.neighbours.per_atom = room * max(edges / atoms for atoms, edges in sizes)
    plan = [sg.Capacity(nodes=nodes, edges=4, graphs=max(5, nodes // 2), max_graph_nodes=nodes - 1)]
    runner = made_runner(model, plan, mode, differentiable=("pos", "cell"))
    return atoms.Calculator(runner, torch.float64, **options)


def argon():
    from ase.build import bulk

    crystal = bulk("Ar", "fcc", a=5.3, cubic=True)
    crystal.rattle(0.1, seed=1)
    return crystal


def test_the_calculator_is_ases():
    from ase.calculators.lj import LennardJones as Reference

    gas = argon()
    gas.pbc = False
    structures = [argon(), gas, argon().repeat((2, 1, 1))]
    results = calculator_of(structures).many(structures)
    for structure, result in zip(structures, results, strict=True):
        structure.calc = Reference(epsilon=0.0104, sigma=3.4, rc=8.0)
        assert result["energy"] == pytest.approx(structure.get_potential_energy(), rel=1e-6)
        np.testing.assert_allclose(result["forces"], structure.get_forces(), atol=1e-8)
        if structure.pbc.all():
            np.testing.assert_allclose(result["stress"], structure.get_stress(), atol=1e-9)


def test_the_model_of_torch_sim_is_valid_and_its_loops_run():
    ts = pytest.importorskip("torch_sim")
    from torch_sim.models.interface import validate_model_outputs

    structures = [argon(), argon().repeat((2, 1, 1))]
    calculator = calculator_of(structures, nodes=40)
    model = atoms.TorchSimModel(calculator.runner)
    validate_model_outputs(model, model.device, model.dtype)
    state = ts.io.atoms_to_state(structures, model.device, model.dtype)
    out, expected = model(state), calculator.many(structures)
    assert out["energy"].tolist() == pytest.approx([each["energy"] for each in expected])
    forces = np.concatenate([each["forces"] for each in expected])
    np.testing.assert_allclose(out["forces"].numpy(), forces, atol=1e-12)
    stress = out["stress"][0].numpy().flat[[0, 4, 8, 5, 2, 1]]
    np.testing.assert_allclose(stress, expected[0]["stress"], atol=1e-12)
    relaxed = ts.optimize(state, model, optimizer=ts.gradient_descent, max_steps=30)
    assert (model(relaxed)["energy"] < out["energy"]).all()


def test_a_calculator_makes_room_for_edges_and_says_when_it_does_not():
    dense = argon()
    expected = calculator_of([dense]).many([dense])[0]["energy"]
    growing = calculator_of([dense], room=0.5, nodes=7, mode="fused")
    assert growing.many([dense])[0]["energy"] == pytest.approx(expected, abs=1e-12)
    growing.many([dense])
    assert growing.growths == 1
    stuck = calculator_of([dense], room=0.5, nodes=7, max_growth=0)
    with pytest.raises(ArithmeticError, match=r"structure 0 \(Ar4\) has an energy"):
        stuck.many([dense])


def test_a_training_step_without_room_for_edges_is_refused():
    graphs = [atoms.to_data(argon(), torch.float64) for _ in range(2)]
    for graph in graphs:
        graph.energy = torch.zeros(1, dtype=torch.float64)
    model = LennardJones(3.0).double()

    def loss(out, batch):
        return (out["energy"] - batch.energy).square()

    capacity = sg.Capacity(nodes=10, edges=4, graphs=5, max_graph_nodes=5)
    runner = sgd_runner(model, [capacity], loss=loss, rate=1.0, differentiable=("pos", "cell"))
    batch = next(iter(runner.loader(sg.GraphStore.from_pyg(graphs), exact=False)))
    with pytest.raises(sg.NonFiniteLoss, match=r"more edges than neighbours has rows for"):
        runner.step(batch)
    assert float(model.depth) == pytest.approx(0.0104), "no update"
    model.neighbours.grow(100.0)
    assert float(runner.step(batch)) > 0


# ---------------------------------------------------------------- systems that leave and enter


def relaxed(system, output):
    """One step of steepest descent, at most 0.2 long for each atom."""
    forces = output["forces"]
    length = forces.norm(dim=1).max()
    system.pos = system.pos + forces * min(4.0, 0.2 / float(length))
    system.visits = int(system.visits) + 1
    return bool(length < 0.02) or system.visits == 60


def droplets(count):
    """Drops of argon of two to nine atoms, nearly in place or far from it."""
    random = np.random.default_rng(0)
    grid = np.array(list(itertools.product(range(3), repeat=3))) * 3.8
    drops = []
    for number in range(count):
        pos = grid[: random.integers(2, 10)]
        pos = torch.tensor(pos + random.normal(scale=0.05 + number % 3 * 0.3, size=pos.shape))
        cell, pbc = torch.zeros(1, 3, 3).double(), torch.zeros(1, 3, dtype=torch.bool)
        drops.append(Data(pos=pos, cell=cell, pbc=pbc, num_nodes=len(pos), visits=0))
    return drops


@pytest.mark.slow
def test_a_stream_gives_what_each_system_alone_gives_in_batches_that_stay_full():
    runner = calculator_of([argon()], nodes=37).runner
    alone = []
    for drop in droplets(40):
        while not relaxed(drop, {"forces": runner.predict([drop])["forces"][0]}):
            pass
        alone.append(drop)
    streaming = atoms.stream(runner, droplets(40), relaxed, lookahead=16)
    results = {each.number: each for each in streaming}
    assert sorted(results) == list(range(40))
    for number, expected in enumerate(alone):
        assert results[number].error is None
        assert results[number].steps == expected.visits
        torch.testing.assert_close(results[number].system.pos, expected.pos, rtol=0, atol=1e-9)
    waits = [max(each.visits for each in alone[i : i + 6]) for i in range(0, 40, 6)]
    fixed = sum(len(d.pos) * d.visits for d in alone) / (37 * sum(waits))
    assert streaming.share > 0.8 > fixed


def test_a_system_that_fails_leaves_alone_and_is_named():
    runner = calculator_of([argon()], nodes=37).runner
    drops = droplets(5)
    drops[3].pos = torch.zeros_like(drops[3].pos)  # all atoms at one place
    seen = []

    def once(system, output):
        seen.append(len(system.pos))
        if len(seen) == 1:
            raise RuntimeError("the first step fails")
        return True

    errors = {each.number: each.error for each in atoms.stream(runner, drops, once)}
    assert sorted(errors) == [0, 1, 2, 3, 4]
    assert "system 3: the model's output is not finite" in str(errors.pop(3))
    assert sorted(str(error) for error in errors.values()) == ["None"] * 3 + [
        "the first step fails"
    ]


def test_a_system_that_takes_too_many_steps_leaves():
    runner = calculator_of([argon()], nodes=37).runner
    streaming = atoms.stream(runner, droplets(2), lambda *_: False, max_steps=3)
    results = [(each.steps, str(each.error)) for each in streaming]
    assert sorted(results) == [(3, f"system {k} is not finished after 3 steps") for k in (0, 1)]


def test_a_system_that_no_bucket_takes_leaves_alone_and_is_named():
    runner = calculator_of([argon()], nodes=7).runner
    large, small = argon().repeat((2, 1, 1)), argon()
    systems = [atoms.to_data(each, torch.float64) for each in (large, small)]
    streaming = atoms.stream(runner, systems, lambda *_: True, lookahead=1)
    errors = {each.number: each.error for each in streaming}
    assert errors.pop(1) is None
    message = "system 0 has 8 nodes and 0 edges, and the runner's largest bucket takes"
    assert str(errors.pop(0)).startswith(message)


def test_what_is_no_structure_and_no_distance_is_named():
    with pytest.raises(TypeError, match=r"a str is no structure: give ase\.Atoms"):
        atoms.to_data("Cu")
    with pytest.raises(sg.BadGraph, match="graph 1 has no 'pos'"):
        atoms.sizes_within([atoms.to_data(argon()), Data(x=torch.rand(3, 2))], 5.0)
    with pytest.raises(ValueError, match=r"cutoff=-1\.0: give a number above 0"):
        atoms.NeighbourSearch(-1.0, 4)
    with pytest.raises(ValueError, match="per_atom=-1"):
        atoms.NeighbourSearch(5.0, -1)
