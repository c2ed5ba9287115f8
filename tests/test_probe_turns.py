"""Blocks computed in turn: whose turn it is, and bytes as sums over earlier and later blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.own_blocks import POOLS, Pooled
from support.parity import STORE, loss
from torch import nn
from torch_geometric.nn import GPSConv

import staticgraph as sg
from staticgraph import models
from staticgraph.errors import FitRefused
from staticgraph.memory.counts import TERMS, TURNS, counts_of, turns_of
from staticgraph.memory.fit import FitPoint, fit
from staticgraph.memory.model import MemoryModel
from staticgraph.memory.regime import Regime
from staticgraph.memory.series import Moments
from staticgraph.nn.context.turns import Turn, in_turn, watched
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.layouts import ONE, apart
from staticgraph.probing.loops import parts_of
from staticgraph.probing.probe import probe
from staticgraph.probing.reading import GivenReader, Probed, Reading
from staticgraph.sizes.capacity import Capacity

SEVERAL = [
    Capacity(int(2_000 * n), int(5_000 * e), int(300 * g), int(24 * m))
    for n, e, g, m in (
        (0.5, 0.5, 1, 1),
        (0.3, 0.5, 1, 1),
        (0.5, 0.3, 1, 1),
        (0.5, 0.5, 0.5, 1.5),
        (1, 1, 2, 1),
        (1, 0.5, 2, 1.2),
        (1, 1, 1, 2),
        (2, 2, 4, 2),
    )
]


def squared(out, batch):
    return (out - batch.y).square()


def error_at(model, loss, schema, memory, capacity):
    with FakeTensorReader().open(Probed(sg.Subject(model, loss), schema)) as read:
        return abs(memory.fit.predict(capacity) / read(capacity).step - 1)


# ------------------------------------------------------------------------------- whose turn it is


def test_forward_and_backward_say_whose_turn_it_is():
    seen, blocks = [], [(torch.ones(2, requires_grad=True) * k, torch.ones(2)) for k in (1, 2, 3)]
    with watched(seen.append):
        outs = in_turn(lambda block, mask: block.exp() * mask, blocks)
    assert seen == [*(Turn(0, False, k) for k in range(3)), None]
    seen.clear()
    torch.cat(outs).sum().backward()
    assert seen == [*(Turn(0, True, k) for k in (2, 1, 0)), None]


def test_loops_are_numbered_and_nothing_is_told_where_nobody_watches():
    seen, one = [], [(torch.ones(1),)]
    with watched(seen.append):
        in_turn(torch.exp, one)
        in_turn(torch.exp, one)
    assert [turn and turn.loop for turn in seen] == [0, None, 1, None]
    assert in_turn(torch.exp, one)[0] == torch.ones(1).exp()
    assert len(seen) == 4


# ------------------------------------------------------------------------------------ arithmetic


def made(capacity: Capacity, held: float, grows: float) -> FitPoint:
    """A step with one loop: each block leaves ``held`` bytes per place allocated and takes
    ``grows`` bytes per pair during its turn; outside the loop, 50 bytes per node."""
    turns = turns_of(capacity, "auto")
    outside = np.array([50.0 * capacity.nodes, 50.0 * capacity.nodes + 5])
    loop = tuple(
        np.array([50.0 * capacity.nodes + held * turn["places before"] + grows * turn["pairs now"]])
        for turn in turns
    )
    peak = max(float(outside.max()), *(float(one.max()) for one in loop))
    return FitPoint(capacity, peak, None, Moments(outside, (loop,)))


def test_the_sums_of_a_loop_are_found():
    found = fit([made(c, 40.0, 3.0) for c in SEVERAL], "series")
    assert found.worst < 1e-9
    assert found.terms == TERMS["series"]
    for other in (Capacity(3_000, 9_000, 900, 90), Capacity(9_000, 20_000, 400, 500)):
        assert len(turns_of(other, "auto")) > 1
        assert found.predict(other) == pytest.approx(made(other, 40.0, 3.0).nbytes)
        assert MemoryModel(found).binding(other) == "attention"
        shares = found.shares(other)
        assert shares["pairs now"] == pytest.approx(
            max(3.0 * turn["pairs now"] for turn in turns_of(other, "auto")), rel=0.5
        )


def test_the_turns_of_a_capacity_add_up_to_its_counts():
    for capacity in SEVERAL:
        counts, turns = counts_of(capacity, "auto"), turns_of(capacity, "auto")
        assert len(turns) > 1
        for turn in turns:
            assert set(turn) == set(TURNS)
            for count in ("places", "pairs", "graphs"):
                whole = sum(turn[f"{count} {when}"] for when in ("before", "now", "after"))
                assert whole == counts[count]


def test_other_iterations_than_blocks_are_refused():
    points = [made(c, 40.0, 3.0) for c in SEVERAL]
    short = [p._replace(turns=Moments(p.turns.outside, (p.turns.loops[0][:1],))) for p in points]
    with pytest.raises(FitRefused, match="other iterations than the layout has blocks"):
        fit(short, "series")
    with pytest.raises(FitRefused, match="no loop over blocks was seen"):
        fit([p._replace(turns=None) for p in points], "series")
    with pytest.raises(FitRefused, match=r"unknowns of a loop|tell the blocks of a loop apart"):
        fit(points[:2], "series")


def reading(*turns):
    operations, moments, whose = zip(*turns, strict=True)
    return Reading(
        int(max(moments)),
        moments=np.array(moments, np.float64),
        operations=np.array(operations, np.int64),
        turns=whose,
    )


def test_steps_of_unlike_many_blocks_match_iteration_by_iteration():
    def loop(blocks, backward):
        order = reversed(range(blocks)) if backward else range(blocks)
        return [(2, 10 * b + backward, Turn(0, backward, b)) for b in order]

    steps = [
        reading((1, 3, None), *loop(count, False), (4, 5, None), *loop(count, True), (6, 1, None))
        for count in (1, 3)
    ]
    one, three = parts_of(steps)
    assert list(one.outside) == list(three.outside) == [3, 5, 1]
    assert [[list(m) for m in loop] for loop in three.loops] == [
        [[0], [10], [20]],
        [[1], [11], [21]],
    ]
    assert len(one.loops[0]) == 1
    assert parts_of([reading((1, 3, None)), steps[1]]) is None, "no loop in one of them"


# ---------------------------------------------------------------------------------- real models


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(POOLS, reverse=True))
def test_pools_are_predicted_where_graphs_are_larger_than_any_probed(name, tmp_path):
    """One block at all capacities that the data need; several at twice and four times the largest
    graph, with rows and graphs varied independently."""
    torch.manual_seed(0)
    model = Pooled(8, 2, POOLS[name]())
    memory = probe(model, STORE, loss=loss)
    assert [regime for regime, _ in memory.fit.pieces] == [Regime(several=True)]
    assert memory.fit.worst < 0.005
    for capacity in (
        Capacity(2_176, 5_824, 320, 24),
        Capacity(4_352, 11_648, 1_280, 48),
        Capacity(9_000, 9_001, 1_500, 30),
    ):
        assert error_at(model, loss, STORE.schema, memory, capacity) < 0.01
    memory.save(tmp_path / "memory.json")
    assert MemoryModel.load(tmp_path / "memory.json") == memory
    assert "at several blocks by size:" in str(memory)


@pytest.mark.slow
def test_pools_are_predicted_where_some_probes_have_several_blocks(esol):
    """Some of ESOL's probes have several blocks; no single sum explains twice the largest graph."""
    torch.manual_seed(0)
    model = Pooled(9, 1, POOLS["multiset"]())
    memory = probe(model, esol, loss=squared)
    assert memory.fit.worst < 0.01
    for capacity in (Capacity(18_712, 36_764, 1_280, 82), Capacity(7_000, 14_400, 513, 55)):
        assert error_at(model, squared, esol.schema, memory, capacity) < 0.01


def test_explicit_weights_of_several_blocks_are_predicted(esol):
    """A layer with dropout keeps the weights of each block; the probes have one block or several,
    and the order statistics of a plan change the blocks."""
    torch.manual_seed(0)
    model = models.build("gps", esol, hidden=16, layers=1)
    for module in model.modules():
        if isinstance(module, GPSConv):
            module.attn.dropout = 0.5
    memory = probe(model, esol, loss=squared)
    assert memory.fit.form in ("attention", "series")
    ranked = Capacity(3_000, 6_000, 128, 60, order_statistics=((0, 60), (8, 40), (64, 20)))
    for capacity in (Capacity(18_712, 36_764, 1_280, 82), ranked):
        assert error_at(model, squared, esol.schema, memory, capacity) < 0.01


def test_one_block_is_read_where_graphs_are_wider_than_the_data_too():
    """A mask padded to multiples of eight looks quadratic at widths of 3, 6 and 12."""
    base = Capacity(2_176, 5_824, 320, 12)
    first = apart(base, [base])
    wider = [c for c in first if ONE.holds(c) and c.max_graph_nodes > base.max_graph_nodes]
    assert {c.max_graph_nodes for c in wider} == {24, 48}
    again = [c for c in apart(base, [base, *first]) if ONE.holds(c)]
    assert not again, "those are enough"


def test_a_reader_that_tells_no_turns_is_asked_for_more_capacities():
    """Explicit weights in one block at all probes and several beyond; only peaks are reported."""

    def peak(capacity: Capacity) -> int:
        counts = counts_of(capacity, "auto")
        return int(
            1_000
            + 80 * counts["nodes"]
            + 9 * counts["places"]
            + 4 * counts["pairs"]
            + 8 * counts["widest"]
        )

    memory = probe(nn.Linear(2, 2), STORE, reader=GivenReader(peak))
    assert memory.fit.form == "blocks"
    assert memory.fit.layout == "auto"
    wide = Capacity(9_000, 20_000, 1_500, 40)
    assert memory.fit.predict(wide) == pytest.approx(peak(wide), rel=0.01)
