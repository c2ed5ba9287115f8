"""A recorded runner over the net of :mod:`support.gine_net`."""

from __future__ import annotations

from support.gine_net import CAPACITIES, adam, bce
from support.runners import made_runner


def runner_of(model, hiv, optimizer=None, warm=True, **options):
    runner = made_runner(
        model,
        CAPACITIES,
        mode="cuda-graph",
        loss=bce,
        optimizer=optimizer or adam(model),
        **options,
    )
    return runner.warmup(hiv, progress=False) if warm else runner
