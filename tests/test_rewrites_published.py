"""Mode ``fused`` over models in the style of published code: it computes what plain PyG computes,
and the expected parts of each are rewritten."""

from __future__ import annotations

import pytest
from support.published_models import MODELS
from support.rewritten import assert_as_in_plain_pyg, fired, seeded

# In an order in which every second one, those that run by default, has each of the rewrites.
FIRES = {
    "gps, walks": {"neighbour_sum": 1},
    "sage, jumping": {"neighbour_sum": 2, "segments": 2},
    "painn": {"vector_sum": 3},
    "gated": {"edge_rows": 2, "segments": 3, "neighbour_sum": 2},
    "edge network": {"segments": 4, "edge_matrix_sum": 2},
    "schnet": {"neighbour_sum": 1, "edge_rows": 1},
    "attentions": {"neighbour_attention": 2, "pair_score": 1},
    "points": {"edge_rows": 2, "segments": 3},
    "listed": {"gcn_sum": 2},
    "deeper": {"segments": 6},
    "equivariant": {"edge_rows": 4, "segments": 4},
}
assert FIRES.keys() == MODELS.keys()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FIRES)
def test_outputs_gradients_and_statistics_are_those_of_plain_pyg(name, esol):
    found = fired(assert_as_in_plain_pyg(seeded(MODELS[name]), esol))
    for rewrite, times in FIRES[name].items():
        assert found[rewrite] >= times, (rewrite, found)
