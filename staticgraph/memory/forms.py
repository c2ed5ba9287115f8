"""The two- and three-point forms, by name: a line, a parabola, and the size that a limit allows.

The GraphIDS project sizes its batches so: a line through a small and a ten times larger batch, or
``alpha*V^2 + beta*V + gamma`` through three, solved for its positive root. Both charge everything
to one size ``V``; :mod:`staticgraph.memory.fit` tells nodes, edges and graphs apart and takes more
points than unknowns. These remain for two or three numbers read off a dashboard. Pure numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from staticgraph.errors import FitRefused


def line_through(small: tuple[float, float], large: tuple[float, float]) -> tuple[float, float]:
    """Slope and intercept of two points ``(x, bytes)``; the intercept takes the fixed costs.

    Raises:
        FitRefused: equal sizes, or bytes that fall while the size grows.
    """
    (x0, y0), (x1, y1) = sorted((small, large))
    if x0 == x1:
        raise FitRefused(f"both points have size {x0:g}: a line needs two sizes")
    slope = (y1 - y0) / (x1 - x0)
    if slope < 0:
        raise FitRefused(
            f"{y1:g} bytes at size {x1:g}, but {y0:g} at {x0:g}: something else changed between "
            "the two measurements; measure again, warm"
        )
    return slope, y0 - slope * x0


def parabola_through(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """``alpha, beta, gamma`` of three points ``(V, bytes)``.

    Raises:
        FitRefused: not three distinct sizes, or negative curvature.
    """
    distinct = sorted(dict(points).items())
    if len(distinct) != 3:
        raise FitRefused(f"{len(distinct)} distinct sizes; a parabola needs exactly three")
    (x0, y0), (x1, y1), (x2, y2) = distinct
    first, second = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    alpha = (second - first) / (x2 - x0)
    if alpha < 0:
        raise FitRefused(
            f"the curvature is {alpha:g}, negative: the bytes grow ever more slowly, which no "
            "model does; take the linear form"
        )
    beta = first - alpha * (x0 + x1)
    return alpha, beta, y0 - (alpha * x0 + beta) * x0


def positive_root(alpha: float, beta: float, gamma: float, limit: float) -> float:
    """The size ``V >= 0`` up to which ``alpha*V^2 + beta*V + gamma <= limit``.

    Returns:
        0.0 where the limit is passed at once, infinity where it never is.
    """
    spare = limit - gamma
    if spare < 0 or (spare == 0 and (beta > 0 or (beta == 0 and alpha > 0))):
        return 0.0
    if alpha == 0:
        return spare / beta if beta > 0 else math.inf
    discriminant = beta * beta + 4 * alpha * spare
    if discriminant < 0:
        return math.inf
    # The form that does not subtract nearly equal numbers.
    half = -(beta + math.copysign(math.sqrt(discriminant), beta)) / 2
    roots = [half / alpha] + ([-spare / half] if half else [])
    upward = [v for v in roots if v > 0 and 2 * alpha * v + beta > 0]
    return min(upward, default=math.inf)
