"""Time windows, ``[N, T, F]``: rows with more than one dimension and their norms; sums by source;
one edge network that a loop calls repeatedly."""

from __future__ import annotations

import pytest
from support.random_forward import RandomForward
from support.rewritten import assert_as_in_plain_pyg, captured, fired, seeded
from torch import nn

# Steps of a forward, as in test_rewrites_random.py, what fires, and how often at least.
WINDOWS = {
    "windows": (
        """
rows = h0.tanh().view(-1, 2, 4)
weight = torch.sigmoid(e0[:, 0]).view(-1, 1, 1)
total = scatter(weight * rows[src], dst, 0, n)
total = total + scatter(torch.relu(rows[src] + e0.view(-1, 2, 4)), dst, 0, n)
total = total + torch.zeros_like(rows).index_add_(0, dst, rows[src])
h1 = (total + scatter(rows[src], dst, 0, n, 'max')).flatten(1)""",
        "neighbours",
        4,
    ),
    # Over the channels of [N, C, T], as it follows temporal convolutions.
    "a norm": (
        """
channels = h0.view(-1, 2, 4).transpose(1, 2).contiguous() * 3 + 1
h1 = F.relu(self.extra(channels).view(n, -1)).view_as(channels).flatten(1)""",
        "batch_norm",
        1,
    ),
    "by source": (
        """
rows = h0.view(-1, 2, 4)
h1 = scatter(torch.tanh(rows[dst]), src, 0, n).flatten(1)
h2 = scatter(rows[dst].flatten(1) * 2, src, 0, n, 'mean')""",
        "neighbours",
        2,
    ),
}
# Three rounds of one layer, which calls the edge network every time.
CALLED = """
for _ in range(3):
    h0 = (h0 + scatter(h0[src] * torch.tanh(self.extra(e0)), dst, 0, n)).tanh()"""


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_are_rows(window, esol):
    steps, rewrite, least = WINDOWS[window]
    model = seeded(lambda: RandomForward(steps.strip(), nn.BatchNorm1d(4)))
    assert fired(assert_as_in_plain_pyg(model, esol))[rewrite] >= least


def test_what_is_computed_again_of_the_same_is_computed_once(esol):
    model = seeded(lambda: RandomForward(CALLED.strip(), nn.Linear(8, 8)))
    runner = assert_as_in_plain_pyg(model, esol)
    of_rounds = [node for node in captured(runner).graph.nodes if "tanh" in str(node.target)]
    assert len(of_rounds) == 3  # of each round; the first message has the other
    assert fired(runner)["neighbours"] == 4
