"""Names that a batch uses internally and names of a data set's fields never collide silently.

The tests walk over every attribute of a batch and every array of a slot, so that a new one is
either separated by its name or refused as a field.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.graphs import drawn_graphs, random_graph
from support.hetero_graphs import from_molecule
from support.runners import sgd_runner

import staticgraph as sg
from staticgraph.batches.batch.derived_attributes import TypeView
from staticgraph.batches.collation.collate_arguments import OUTPUTS
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.schema import PRIVATE, RESERVED_OF_TYPE, Axis, Field

TYPES = (Axis("a", "node", ("a",)), Axis("a__to__a", "edge", ("a", "to", "a")))
LAYOUTS = {
    "plain": SlotLayout(0, sg.Capacity(5, 7, 3), sg.Schema(())),
    "pointers": SlotLayout(0, sg.Capacity(5, 7, 3), sg.Schema(()), True),
    "axis": SlotLayout(0, sg.Capacity(5, 7, 3, extra=(("t", 4),)), sg.Schema((), (Axis("t"),))),
    "types": SlotLayout(
        0, sg.Capacity(5, 7, 3, extra=(("a", 4), ("a__to__a", 6))), sg.Schema((), TYPES)
    ),
}


def public(kind: type) -> list[str]:
    """The public names that ``value.name`` finds before any field."""
    return [name for name in dir(kind) if not name.startswith(PRIVATE)]


def refused(names: list[str], axes: tuple[Axis, ...] = ()) -> list[str]:
    """The names that a schema refuses, naming the field."""
    said = []
    for name in names:
        try:
            sg.Schema((Field(name, "graph", (), "float32"),), axes)
        except ValueError as error:
            if repr(name) in str(error) and "rename the field" in str(error):
                said.append(name)
    return said


def test_every_attribute_of_a_batch_is_refused_as_a_field():
    names = public(sg.StaticBatch)
    assert {"real", "layout", "device", "get", "release", "tensors", "clone", "to"} <= set(names)
    assert refused(names) == names


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_array_of_a_slot_is_refused_or_a_name_that_no_field_has(kind):
    layout = LAYOUTS[kind]
    names = [entry.name for entry in layout.entries]
    own = [n for a in layout.schema.axes for n in (f"{a.name}_mask", f"{a.name}_batch")]
    shared = [name for name in names if name not in own and not name.endswith("_ptr")]
    assert refused(shared, layout.schema.axes) == shared
    for name in set(names) - set(shared):
        with pytest.raises(ValueError, match=r"appears twice|every batch has"):
            sg.Schema((Field(name, "graph", (), "float32"),), layout.schema.axes)
    batch = sg.StaticBatch.blank(layout)
    unseen = [name for name in names if name.startswith(PRIVATE)]
    assert unseen
    assert not set(unseen) & set(batch.keys())


def test_an_axis_whose_arrays_are_taken_is_refused_by_its_own_name():
    """No field has the array's name: the error names the rows and whatever gave them their name."""
    for axis, said in (
        (
            Axis("graph"),
            r"'graph' is the name of rows .* 'graph_\w+' .*every batch has: name",
        ),
        (Axis("edge", "node", ("edge",)), r"every batch has: rename the type 'edge'"),
    ):
        with pytest.raises(ValueError, match=said):
            sg.Schema((Field("x", "node", (), "float32"),), (axis,))
    with pytest.raises(ValueError, match=r"'t_batch'.* appears twice, being a field: name these"):
        sg.Schema((Field("t_batch", "graph", (), "float32"),), (Axis("t"),))


def test_every_array_that_collation_on_the_device_writes_is_refused():
    assert refused(list(OUTPUTS)) == list(OUTPUTS)


def test_every_attribute_of_a_type_is_refused_as_its_field():
    names = [f"a.{name}" for name in (*public(TypeView), *RESERVED_OF_TYPE)]
    assert refused(names, TYPES) == names
    assert refused(["x_dict", "self"], TYPES) == ["x_dict", "self"]  # which no keyword can be
    assert refused(["a.x", "a.real", "x_dicts", "a.y_dict"], TYPES) == []


def step_with(name: str, kernels: bool) -> tuple[sg.StaticBatch, torch.Tensor]:
    """A batch whose graphs have a field of this name, and the loss of a step with it."""
    graphs = drawn_graphs((4, 5, 6), dtype=torch.float32, x=("node", 3), y=("graph", 1))
    for graph in graphs:
        graph[name] = torch.arange(3.0)[None] + graph.num_nodes
    store = sg.GraphStore.from_pyg(graphs)
    torch.manual_seed(0)
    model = sg.convert(sg.models.build("gcn", store, hidden=4, layers=1), kernels=kernels)
    runner = sgd_runner(model, [(24, 47, 7)])
    batch = sg.StaticBatch.of(store, range(3), (24, 47, 7), pointers=True)
    return batch, runner.step(batch)


@pytest.mark.parametrize("name", ["counts", "starts", "rows", "mask", "nodes", "size", "weight"])
@pytest.mark.parametrize("kernels", [False, True], ids=["stock", "kernels"])
def test_a_field_may_have_any_other_name(name, kernels):
    """Internal arrays have separate names, whatever a field is called: the loss is the same, and
    the field reads back."""
    batch, loss = step_with(name, kernels)
    assert batch[name][:3].tolist() == [[n, n + 1, n + 2] for n in (4.0, 5.0, 6.0)]
    assert int(batch.num_real_nodes) == 15
    assert torch.equal(loss, step_with("of_no_meaning", kernels)[1])


def test_a_store_names_the_field_and_the_remedy():
    data = random_graph(np.random.default_rng(0), 3, 4)
    data.real = torch.zeros(1)
    with pytest.raises(ValueError, match=r"'real': every batch .* exclude=\[...\]"):
        sg.GraphStore.from_pyg([data])
    assert "real" not in sg.GraphStore.from_pyg([data], exclude=["real"]).schema


def test_a_type_s_field_is_named(hiv):
    data = from_molecule(hiv[0])
    data["atom"].keys_ = torch.zeros(data["atom"].num_nodes)
    assert "atom.keys_" in sg.GraphStore.from_pyg([data]).schema
    data["atom"].mask = torch.zeros(data["atom"].num_nodes)
    with pytest.raises(ValueError, match=r"'atom.mask': every batch"):
        sg.GraphStore.from_pyg([data])


def test_a_model_cannot_set_what_a_batch_keeps_for_itself():
    batch = sg.StaticBatch.blank(LAYOUTS["plain"])
    with pytest.raises(AttributeError, match=r"_counts.*choose another name"):
        batch._counts = torch.zeros(3)
