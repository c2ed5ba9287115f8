"""Layers of the support table are probed: the fit predicts a batch of twice the size, or the
refusal says what to do. By default part of the table runs, including a layer of each special kind;
``EVERY_CASE=1`` runs it all, in twice the time of any other file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.alike import adam, squared
from support.layer_cases import CASES
from support.layer_model import model_of
from support.parity import STORE

import staticgraph as sg
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.probe import probe_capacities
from staticgraph.probing.step_reading import Probed, Read
from staticgraph.sizes.capacity import Capacity

WITHIN = 0.03


class KeptOpen(FakeTensorReader):
    """A reader that can read steps at further capacities after the probe is done."""

    @contextmanager
    def open(self, probed: Probed) -> Iterator[Read]:
        with super().open(probed) as read:
            self.read = read
            yield read


# One layer of each kind that lays nodes out in blocks and attends, selects nodes or adds edges,
# where a probe has failed before. The remaining layers are of the same kinds.
FAST = {
    "SortAggregation",
    "SetTransformerAggregation",
    "to_dense_batch and back",
    "GPSConv performer",
    "TopKPooling min_score",
    "GCNConv",
    "MedianAggregation",
}
assert {case.name for case in CASES} >= FAST
OTHERS = [pytest.mark.slow, pytest.mark.sampled(len(CASES))]
ALL = [pytest.param(case, marks=() if case.name in FAST else OTHERS) for case in CASES]


def times(capacity: Capacity, size: float, widest: float = 1.0) -> Capacity:
    """A capacity with ``size`` times the rows and a largest graph of ``widest`` times the nodes."""
    largest = max(1, round(capacity.max_graph_nodes * widest))
    return Capacity.distinct(
        max(round(capacity.nodes * size), largest + 1),
        round(capacity.edges * size),
        max(2, round(capacity.graphs * size)),
        largest,
    )


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_layer_is_probed_and_predicted_or_refused_by_name(case):
    """Checked at half, twice and four times the largest probe, with largest graphs of the same and
    of twice the nodes."""
    model = model_of(case)
    optimizer = adam(model)
    if case.eager_only:
        with pytest.raises(sg.NotStatic, match="pass max_num_elements="):
            sg.probe(model, STORE, loss=squared, optimizer=optimizer)
        return
    reader = KeptOpen()
    memory = sg.probe(model, STORE, loss=squared, optimizer=optimizer, reader=reader)
    assert memory.checked is not None
    assert memory.fit.worst <= WITHIN
    (*_, largest), _ = probe_capacities(STORE.sizes)
    asked = [times(largest, 0.5), times(largest, 2), times(largest, 4, 2)]
    for capacity in asked:
        off = memory.fit.predict(capacity) / reader.read(capacity).step - 1
        assert abs(off) <= WITHIN, (str(capacity), off)
