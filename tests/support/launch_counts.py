"""Compares the launches of two counts, with kernel names that are stable between compilations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from staticgraph.dryrun.report import BucketRun

# Inductor numbers its kernels in the order in which it writes them.
_NUMBER = re.compile(r"^(triton_.+)_\d+$")


def counts(run: BucketRun) -> dict[str, int]:
    """Returns ``part kind name`` -> launches, with Inductor's kernels without their numbers."""
    launches: Counter[str] = Counter()
    for part, kinds in run.launches.items():
        for kind, names in kinds.items():
            for name, number in names.items():
                stable = _NUMBER.sub(r"\1", name)
                launches[f"{part} {kind} {stable}"] += number
    return dict(launches)


def added(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Returns the additional launches, such as ``forward library aten::mm +2``."""
    return [
        f"{name} +{n - before.get(name, 0)}" for name, n in now.items() if n > before.get(name, 0)
    ]
