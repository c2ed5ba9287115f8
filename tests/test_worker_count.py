"""A loader gets as many threads as the measured times require and the cores allow."""

from __future__ import annotations

import pytest

from staticgraph.plans.worker_count import autosize_workers


@pytest.mark.parametrize(
    ("times", "cores", "workers"),
    [
        ((0.0, 0.001, 0.010), 8, 1),
        ((0.004, 0.007, 0.010), 8, 2),
        ((0.0, 0.050, 0.010), 8, 5),
        ((0.0, 0.500, 0.010), 8, 7),
        ((0.0, 0.500, 0.010), 1, 1),
        ((0.0, 0.0, 0.010), 8, 0),
        ((0.1, 0.2, 0.1), 8, 3),
        ((0.1, 0.2001, 0.1), 8, 4),
        ((0.0001, 1e-13, 0.0001), 3, 2),
    ],
)
def test_workers_for_measured_times(times, cores, workers):
    found = autosize_workers(*times, cores=cores)
    assert found.num_workers == workers
    assert found.slots == workers + 2
