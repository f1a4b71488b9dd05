"""What dominates what, both coordinates to be maximised: the Pareto front and the hypervolume."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby


def pareto_front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the points that no other beats, both coordinates to be maximised.

    A point is beaten by one that is at least as high in both and higher in one; equal points
    stand or fall together. By the first coordinate, ascending.
    """
    order = sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i))
    front: list[int] = []
    highest = -math.inf
    for _, group in groupby(order, key=lambda i: points[i][0]):
        members = list(group)  # all of one first coordinate, highest second coordinate first
        top = points[members[0]][1]
        if top > highest:
            front.extend(i for i in members if points[i][1] == top)
            highest = top
    return tuple(sorted(front, key=lambda i: (points[i], i)))


def hypervolume(points: Iterable[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Area that is dominated by `points` and dominates `reference`; both are maximised; exact.

    In the product of the two units. Only points above `reference` in both coordinates count, and
    one that adds area is never beaten by what was there. Where a panel is measured from is
    `ranking.start_corner`. Zitzler and Thiele 1999, IEEE Trans. Evol. Comput. 3(4), 257-271.
    """
    area, top = 0.0, reference[1]
    # From the right each point adds the strip by which it is higher than all before it.
    for x, y in sorted(points, reverse=True):
        if x > reference[0] and y > top:
            area += (x - reference[0]) * (y - top)
            top = y
    return area
