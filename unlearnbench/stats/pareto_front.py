"""Pareto front and hypervolume of points whose two coordinates are maximised."""

import math
from collections.abc import Iterable, Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the points that no other dominates, sorted by the first coordinate.

    A point is dominated by one that is at least as high in both coordinates and higher in one, so
    that of equal points all or none are on the front.
    """
    front: list[int] = []
    highest = -math.inf
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i)):
        if points[i][1] > highest or (front and points[i] == points[front[-1]]):
            front.append(i)
            highest = points[i][1]
    return tuple(sorted(front, key=lambda i: (points[i], i)))


def hypervolume(points: Iterable[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Area between `reference` and the front of `points`, exact; Zitzler and Thiele 1999.

    Only points above `reference` in both coordinates count; for a panel it is
    `best_settings.Start.corner`. IEEE Trans. Evol. Comput. 3(4), 257-271.
    """
    area, top = 0.0, reference[1]
    # From right to left, each point adds the strip by which it is higher than those before it.
    for x, y in sorted(points, reverse=True):
        if x > reference[0] and y > top:
            area += (x - reference[0]) * (y - top)
            top = y
    return area
