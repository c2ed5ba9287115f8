"""Where entries are, as described by :class:`Axes` and by torch's own views of numbered entries."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from staticgraph.rewrites.attention.axes import COLUMN, Axes, Stretch

SIZES = {"graph": 3, "place": 4, COLUMN: 24}
STRIDES = {"graph": 96, "place": 24, COLUMN: 1, "": 0}


def entries(axes: Axes) -> torch.Tensor:
    """The number of every entry, according to the description."""
    total = torch.tensor(axes.start)
    for dim in axes.dims:
        numbers = torch.zeros((), dtype=torch.int64)
        for axis, size, step in dim:
            own = torch.arange(size) * step * STRIDES[axis]
            numbers = (numbers[..., None] + own).flatten()
        total = total[..., None] + (numbers if dim else torch.zeros(1, dtype=torch.int64))
    return total


def source() -> tuple[Axes, torch.Tensor]:
    return Axes.from_sizes(*SIZES.items()), torch.arange(math.prod(SIZES.values())).view(
        *SIZES.values()
    )


def shapes_of(number: int, draw: random.Random) -> list[int]:
    """Sizes whose product is ``number``."""
    sizes = []
    while number > 1:
        size = draw.choice([k for k in range(1, number + 1) if number % k == 0])
        sizes.append(size)
        number //= size
    return sizes or [1]


@pytest.mark.parametrize("seed", range(40))
def test_any_chain_of_moves_is_described_or_given_up(seed):
    draw = random.Random(seed)
    axes, given = source()
    done = 0
    for _ in range(12):
        kind = draw.choice(["view", "permute", "swap", "cut", "select", "expand"])
        dims = given.dim()
        dim = draw.randrange(dims)
        if kind == "view":
            sizes = shapes_of(given.numel(), draw)
            found, after = axes.view(sizes), given.reshape(sizes)
        elif kind == "permute":
            order = draw.sample(range(dims), dims)
            found, after = axes.permute(order), given.permute(order)
        elif kind == "swap":
            other = draw.randrange(dims)
            found, after = axes.swap(dim, other - dims), given.transpose(dim, other)
        elif kind == "cut":
            first = draw.randrange(given.size(dim))
            size = draw.randint(1, given.size(dim) - first)
            found, after = axes.cut(dim, first, size), given.narrow(dim, first, size)
        elif kind == "select" and dims > 1:
            place = draw.randrange(given.size(dim))
            found, after = axes.select(dim, place), given.select(dim, place)
        else:
            sizes = [2, *given.shape]
            found, after = axes.expand(sizes), given.expand(sizes)
        if found is None or after.numel() > 5000:
            continue
        axes, given = found, after
        done += 1
        assert torch.equal(entries(axes), given), (seed, kind)
    assert done > 2


def test_what_mixes_entries_is_given_up():
    axes, _ = source()
    assert axes.view([5, 2]) is None
    assert axes.cut(0, 1, 2) is None  # graphs are never cut
    pairs = axes.permute([2, 0, 1])
    assert pairs.view([24, 12]).dims[1] == (Stretch("graph", 3), Stretch("place", 4))
    assert pairs.view([24, 12]).cut(1, 3, 6) is None
    assert axes.permute([0, 0, 1]) is None
    assert list(itertools.chain(*axes.view([288]).dims)) == [
        Stretch("graph", 3),
        Stretch("place", 4),
        Stretch(COLUMN, 24),
    ]
