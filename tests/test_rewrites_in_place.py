"""A tensor changed in place after it was read: the earlier read still gives the earlier value."""

from __future__ import annotations

import functools

import pytest
from support.random_forward import RandomForward
from support.rewritten import difference, fired, missed, seeded

# Steps of a forward, as in test_rewrites_random.py.
HARMFUL = {
    "a column after a gather": """
h1 = self.product(h0)
e1 = h1[src]
h1[:, 0] = 0
h2 = scatter(e1, dst, 0, n)""",
    # The gather comes first, so a copy is changed, of which a view is taken.
    "a view of a copy": """
h1 = self.product(h0)
e1 = h1[src]
h1[:, 0] = 0
h2 = h1[:]
h2 += 0.5
h3 = scatter(e1, dst, 0, n)""",
    "twice": """
h1 = self.product(h0)
view = h1.view(-1, 2, 4)
h1 += 1.0
h1 += h1
h2 = view.flatten(1) * 2 + self.norm(h1)""",
    "rows of edges that a message reads": """
h1 = self.product(h0)
e1 = h1[src]
e2 = e1 + h1[dst]
e1 *= 0
h2 = scatter(e2.relu(), dst, 0, n) + scatter(e1, dst, 0, n)""",
    "rows that were gathered, without a gradient": """
h1 = self.product(h0)
e1 = h1[src]
with torch.no_grad():
    h1 += 1.0
h2 = scatter(e1, dst, 0, n)""",
    "by its own operand": """
h1 = self.product(h0)
half = h1[:, :4]
e1 = h1[src]
half *= half.sum(1, keepdim=True)
h2 = scatter(e1, dst, 0, n)""",
    # What PyG's older layers do for nodes without neighbours.
    "roots of degrees": """
root = scatter(torch.ones_like(src, dtype=h0.dtype), dst, 0, n).pow(-0.5)
root[root == float('inf')] = 0
h1 = scatter(h0[src] * (root[src] * root[dst]).view(-1, 1), dst, 0, n)""",
    "an input": """
rows = kind.double()
e1 = rows[src]
rows += 1.0
h1 = self.norm(self.product(scatter(e1, dst, 0, n) + rows)).relu()""",
}
# Every common change of a tensor that nothing else reads.
HARMLESS = """
h1 = self.product(h0)
h1 += h1.sum(1, keepdim=True)
h1 = F.relu(h1, inplace=True)
total = torch.zeros_like(h1)
total.index_add_(0, dst, h1[src])
total += h1
total /= 2
weight = torch.ones(n, 1, dtype=h1.dtype, device=h1.device)
weight[:3] = 2.0
h2 = F.dropout(total + weight * self.norm(h1), 0.5, False, True)"""


@functools.cache
def compared(steps, store) -> tuple:
    """The difference to plain PyG and the runner, computed once for all tests of a forward."""
    return difference(seeded(lambda: RandomForward(steps.strip())), store)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", HARMFUL)
def test_outputs_and_gradients_are_those_of_plain_pyg(change, esol):
    largest, _ = compared(HARMFUL[change], esol)
    assert largest <= 1e-10


def test_what_nothing_else_reads_is_rewritten(esol):
    largest, runner = compared(HARMLESS, esol)
    assert largest <= 1e-10
    assert fired(runner) == {"neighbours": 1, "batch_norm": 1, "pools": 1}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change", ["a column after a gather", "twice", "roots of degrees", "an input"]
)
def test_a_change_that_is_read_by_name_alone_keeps_nothing_from_being_rewritten(change, esol):
    _, runner = compared(HARMFUL[change], esol)
    assert fired(runner)["pools"] >= 1
    assert "in place" not in missed(runner)


@pytest.mark.parametrize(
    "change", ["by its own operand", "rows that were gathered, without a gradient"]
)
def test_a_change_that_something_else_sees_is_said_with_its_line(change, esol):
    _, runner = compared(HARMFUL[change], esol)
    assert not fired(runner)
    # The fourth step: three lines stand before the first.
    assert ":7: its operand is changed in place after it was read" in missed(runner)
