"""Pareto front and hypervolume of points whose two coordinates are maximised."""

import math
from collections.abc import Iterable, Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Find the indices of the points that no other point dominates.

    A point is dominated by a point that is at least as high in both coordinates and higher in one.
    So either all of several equal points are on the front, or none.

    Returns:
        Indices in the order of the first coordinate.
    """
    front: list[int] = []
    highest = -math.inf
    # From right to left, a point is on the front if it is higher than all points before it.
    for i in sorted(range(len(points)), key=lambda i: (-points[i][0], -points[i][1], i)):
        if points[i][1] > highest or (front and points[i] == points[front[-1]]):
            front.append(i)
            highest = points[i][1]
    return tuple(sorted(front, key=lambda i: (points[i], i)))


def hypervolume(points: Iterable[tuple[float, float]], reference: tuple[float, float]) -> float:
    """Compute the exact area between a reference point and the front of points.

    Zitzler and Thiele 1999, IEEE Trans. Evol. Comput. 3(4), 257-271.

    Args:
        points: Coordinates of the points.
        reference: Only points above it in both coordinates count. For a panel it is
            `start_model.Start.corner`.
    """
    area = 0.0
    top = reference[1]
    # From right to left, each point adds the strip by which it is higher than those before it.
    for x, y in sorted(points, reverse=True):
        if x > reference[0] and y > top:
            area += (x - reference[0]) * (y - top)
            top = y
    return area
