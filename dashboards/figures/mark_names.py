"""Names beside marks: places of texts that cover no other text, no mark, and no line if possible.

Pure. Places are in pixels, from the top left corner of a plot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_RADII = (0.0, 6.0, 14.0, 24.0, 38.0, 56.0, 80.0, 110.0)
"""Distances of a text's box from the mark."""
_ANGLES = 24
_MARK = 6.0
"""Pixels around a mark's centre that no text covers."""
_ON_TEXT, _OUTSIDE, _ON_MARK, _THROUGH_MARK, _ON_LINE, _FAR = 1000.0, 400.0, 40.0, 15.0, 8.0, 0.6
"""Costs: of each text that is covered, of leaving the plot, of each mark that is covered, of each
mark between a name and its own mark, of each line below the text, and of each pixel of distance."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, centre: Point, width: float, height: float) -> Box:
        """Return a box by its centre."""
        x, y = centre
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def overlaps(self, other: Box) -> bool:
        """Whether two boxes have a part in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)

    def is_crossed(self, start: Point, end: Point) -> bool:
        """Whether a line from one point to another goes through the box (Liang and Barsky 1984)."""
        (x, y), (to_x, to_y) = start, end
        dx, dy = to_x - x, to_y - y
        first, last = 0.0, 1.0
        for step, distance in (
            (-dx, x - self.left),
            (dx, self.right - x),
            (-dy, y - self.top),
            (dy, self.bottom - y),
        ):
            if step == 0:
                if distance < 0:
                    return False
            elif step < 0:
                first = max(first, distance / step)
            else:
                last = min(last, distance / step)
        return first <= last


@dataclass(frozen=True)
class Name:
    """A text and the mark that it names."""

    mark: Point
    width: float
    height: float


@dataclass(frozen=True)
class Plot:
    """What names should not cover."""

    width: float
    height: float
    marks: Sequence[Point] = ()
    lines: Sequence[tuple[Point, Point]] = ()
    texts: Sequence[Box] = ()
    """Texts that stand already."""


def place_names(names: Sequence[Name], plot: Plot) -> list[Point]:
    """Return the centre of each name.

    Names are placed one after another, those of crowded marks first, each at the best of a fixed
    number of places around its mark. The result depends on nothing else.
    """
    places: list[Point] = [(0.0, 0.0)] * len(names)
    taken = list(plot.texts)
    leaders: list[tuple[Point, Point]] = []
    for number in sorted(range(len(names)), key=lambda number: -_crowd(names[number], plot)):
        name = names[number]
        candidates = list(_candidates(name))
        costs = [_cost(name, centre, plot, taken, leaders) for centre in candidates]
        best = candidates[costs.index(min(costs))]
        places[number] = best
        taken.append(Box.around(best, name.width, name.height))
        leaders.append((name.mark, best))
    return places


def _crowd(name: Name, plot: Plot) -> float:
    """Return how many marks are near."""
    return sum(1 / (20.0 + math.dist(name.mark, mark)) for mark in plot.marks)


def _candidates(name: Name) -> Iterable[Point]:
    """Return centres of the text on rings around its mark, nearest first."""
    x, y = name.mark
    for radius in _RADII:
        for number in range(_ANGLES):
            angle = 2 * math.pi * number / _ANGLES
            across, down = math.cos(angle), math.sin(angle)
            # The box touches a circle around the mark from outside, in every direction.
            reach = radius + _MARK + 4
            yield (
                x + across * (reach + name.width / 2 * abs(across)),
                y + down * (reach + name.height / 2 * abs(down)),
            )


def _cost(
    name: Name,
    centre: Point,
    plot: Plot,
    taken: Sequence[Box],
    leaders: Sequence[tuple[Point, Point]],
) -> float:
    box = Box.around(centre, name.width, name.height)
    cost = _FAR * math.dist(name.mark, centre)
    cost += _ON_TEXT * sum(box.overlaps(other) for other in taken)
    is_outside = box.left < 0 or box.top < 0 or box.right > plot.width or box.bottom > plot.height
    cost += _OUTSIDE * is_outside
    grown = Box(box.left - _MARK, box.top - _MARK, box.right + _MARK, box.bottom + _MARK)
    for x, y in plot.marks:
        cost += _ON_MARK * (grown.left < x < grown.right and grown.top < y < grown.bottom)
        is_own = math.dist(name.mark, (x, y)) < _MARK
        if not is_own:
            mark = Box.around((x, y), _MARK, _MARK)
            cost += _THROUGH_MARK * mark.is_crossed(name.mark, centre)
    cost += _ON_LINE * sum(box.is_crossed(*line) for line in plot.lines)
    # The thin line from a name to its mark should not run through another name, nor another's line
    # through this one.
    cost += _ON_MARK * sum(box.is_crossed(*leader) for leader in leaders)
    cost += _ON_MARK * sum(other.is_crossed(name.mark, centre) for other in taken)
    return cost


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Move places on a line so far that neighbours are apart, and as little as possible.

    The places keep their order. Clusters are merged and centred on the mean of their wishes, which
    is the least-squares solution (pool adjacent violators).

    Args:
        places: Where texts would stand.
        apart: Least distance of two texts.
        low: Start of the line.
        high: End of the line; more texts than it has room for go beyond it.
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    # Without the distances, neighbours have to be in order: an isotonic regression.
    clusters: list[tuple[float, int]] = []
    for rank, number in enumerate(order):
        clusters.append((places[number] - rank * apart, 1))
        while len(clusters) > 1 and clusters[-2][0] > clusters[-1][0]:
            (mean, count), (other, other_count) = clusters[-2:]
            total = count + other_count
            clusters[-2:] = [((mean * count + other * other_count) / total, total)]
    limit = max(low, high - (len(places) - 1) * apart)
    moved = [0.0] * len(places)
    rank = 0
    for mean, count in clusters:
        for _ in range(count):
            moved[order[rank]] = min(max(mean, low), limit) + rank * apart
            rank += 1
    return moved
