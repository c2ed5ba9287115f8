"""Points for fits of memory: bytes of capacities, computed from known coefficients."""

from __future__ import annotations

import numpy as np

from staticgraph.memory.fit import FitPoint, counts_of
from staticgraph.probing.probe import probe_capacities

SIZES = np.array([[5, 8], [25, 54], [60, 130], [12, 26]])


CAPACITIES, HELD_OUT = probe_capacities(SIZES)


def points_of(terms, coefficients, capacities=CAPACITIES):
    return [
        FitPoint(c, sum(k * counts_of(c)[t] for t, k in zip(terms, coefficients, strict=True)))
        for c in capacities
    ]
