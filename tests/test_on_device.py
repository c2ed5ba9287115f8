"""A data set on the device: exact, compact, within budget; batches from ids equal the host's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.alike import same
from support.collated import (
    assert_same_bits,
    collated,
    filled,
    layout_for,
    padded_ids,
)
from support.drawn import examples
from support.graphs import graph_lists

import staticgraph as sg
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.dryrun.operations import OperationCounter
from staticgraph.errors import StaleBatch
from staticgraph.kernels.collate import collate_reference
from staticgraph.memory.budget import MemoryBudget


class TestStore:
    def test_molecules_take_so_many_bytes(self, hiv):
        """x takes 9 bytes per node, edge_attr 3 per edge; ends and permutation 1 each (no molecule
        has more than 256 atoms), two pointers 2 bytes per node (some have more than 255 edges)."""
        graphs, nodes, edges = len(hiv), int(hiv.node_offsets[-1]), int(hiv.edge_offsets[-1])
        largest = int(hiv.sizes[:, 1].max())
        assert hiv.sizes[:, 0].max() <= 256 < largest
        without = 9 * nodes + (3 + 2) * edges + 2 * 4 * (graphs + 1) + graphs
        assert hiv.to("cpu", pointers=False).nbytes == without
        assert hiv.to("cpu").nbytes == without + 2 * 2 * nodes + 2 * edges

    def test_a_store_that_does_not_fit_is_refused_with_its_parts(self, esol):
        needed = esol.to("cpu").nbytes
        assert esol.to("cpu", budget=MemoryBudget(needed)).nbytes == needed
        with pytest.raises(
            sg.BudgetExceeded,
            match=rf"edge_attr +uint8 for int64[\s\S]*raise the cap to {needed:,}",
        ) as caught:
            esol.to("cpu", budget=MemoryBudget(needed - 1))
        assert caught.value.floor_bytes == needed
        with pytest.raises(sg.BudgetExceeded, match="taken by other data"):
            esol.to("cpu", budget=MemoryBudget(needed).with_data_set(1))

    def test_indices_of_its_own_are_refused(self, esol):
        field = replace(esol.schema["edge_attr"], counts=("node",))
        others = tuple(f for f in esol.schema if f.name != "edge_attr")
        odd = replace(esol, schema=replace(esol.schema, fields=(*others, field)))
        with pytest.raises(ValueError, match=r"edge_attr.*leave it on the host"):
            odd.to("cpu")


class TestCollation:
    """The reference; test_kernels_triton.py runs the same comparisons for the Triton kernels."""

    @given(graph_lists(), st.data())
    @examples(60)
    def test_any_graphs(self, graphs, data):
        store = sg.GraphStore.from_pyg(graphs)
        ids = data.draw(st.lists(st.integers(0, len(store) - 1), max_size=6))
        layout = layout_for(store, ids, True, data.draw(st.tuples(*[st.integers(1, 9)] * 3)))
        found = collated(collate_reference, store.to("cpu"), ids, layout)
        assert_same_bits(found, filled(store, ids, layout))

    def test_compiles_to_one_graph_without_a_host_read(self, esol):
        layout = layout_for(esol, range(20))
        moved = esol.to("cpu")
        ids, tensors = padded_ids(range(20), layout), filled(esol, range(20), layout)
        arguments = collate_arguments(moved, layout, tensors)
        # Separate arrays, since AOTAutograd does not accept output views of another dtype.
        found = arguments._replace(out=[torch.zeros_like(value) for value in arguments.out])
        with OperationCounter() as counter:
            collate_reference(ids, *found)
        assert counter.host_reads == 0
        for value in found.out:
            value.zero_()
        torch.compile(collate_reference, fullgraph=True, backend="aot_eager")(ids, *found)
        assert same(found.out, arguments.out)

    def test_operator_is_registered_well(self, esol):
        layout = layout_for(esol, range(5))
        tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8))
        arguments = collate_arguments(esol.to("cpu"), layout, tensors)
        torch.library.opcheck(
            torch.ops.staticgraph.collate.default,
            (padded_ids(range(5), layout), *arguments),
            test_utils=("test_schema", "test_faketensor"),
        )


class TestLoader:
    @pytest.mark.parametrize("exact", [True, False])
    @pytest.mark.parametrize("pointers", [True, False])
    def test_same_batches_as_from_the_host(self, esol, exact, pointers):
        """Including the short last batch and a second epoch."""
        plan = sg.plan_buckets(esol, batch_size=50)
        options = {"exact": exact, "shuffle": True, "seed": 3, "pointers": pointers}
        host = sg.StaticLoader(esol, plan, **options)
        device = sg.StaticLoader(esol.to("cpu", pointers=pointers), plan, **options)
        assert len(host) == len(device)
        for _ in range(2):
            for one, other in zip(host, device, strict=True):
                assert one.real == other.real
                assert one.bucket == other.bucket
                assert_same_bits(dict(other.tensors()), dict(one.tensors()))
                assert other.tensors().ids.nbytes == 4 * one.num_graphs

    def test_a_batch_given_back_unread_is_stale(self, esol):
        batch = next(iter(sg.StaticLoader(esol.to("cpu"), [(700, 1500, 33)])))
        batch.release()
        for read in (lambda: batch.x, lambda: batch.num_real_nodes):
            with pytest.raises(StaleBatch, match="gave its slot back"):
                read()

    def test_what_is_not_there_is_said(self, esol):
        store = esol.to("cpu", pointers=False)
        with pytest.raises(ValueError, match=r"without row pointers: store.to\(device, pointers"):
            sg.StaticLoader(store, [(700, 1500, 33)], pointers=True)
        with pytest.raises(ValueError, match=r"is on cpu.*device='cuda'"):
            sg.StaticLoader(store, [(700, 1500, 33)], device="cuda")
