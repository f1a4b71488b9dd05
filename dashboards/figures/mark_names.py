"""Places of names beside marks. Names cover no text, no mark and, if possible, no line.

`place_names` places names freely around marks. `spread` moves names on a vertical line apart. All
places are in pixels, from the top left corner of a plot.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_RADII = (0.0, 6.0, 14.0, 24.0, 38.0, 56.0, 80.0, 110.0)
"""Pixels between a mark and the box of its name that are tried."""
_ANGLES = 24
"""Number of directions that are tried at each distance."""
_MARK = 6.0
"""Pixels around a mark's centre that no text should cover."""

# The place of a name with the lowest cost wins.
_ON_TEXT = 1000.0
"""Cost of each text that is covered."""
_OUTSIDE = 400.0
"""Cost of leaving the plot."""
_ON_MARK = 40.0
"""Cost of each covered mark, and of each text that a line from a name to its mark crosses."""
_THROUGH_MARK = 15.0
"""Cost of each other mark between a name and its own mark."""
_ON_LINE = 8.0
"""Cost of each line below the text."""
_FAR = 0.6
"""Cost of each pixel between the name's centre and its mark."""

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
        """Whether two boxes have an area in common."""
        is_beside = self.right <= other.left or other.right <= self.left
        is_above_or_below = self.bottom <= other.top or other.bottom <= self.top
        return not (is_beside or is_above_or_below)

    def is_crossed(self, start: Point, end: Point) -> bool:
        """Whether the line from one point to another goes through the box (Liang and Barsky 1984).

        The line is start + t · (end - start) for t from 0 to 1. Each side of the box allows only t
        on its inner side, and the line crosses the box if some t is left.
        """
        x, y = start
        to_x, to_y = end
        dx = to_x - x
        dy = to_y - y
        first, last = 0.0, 1.0
        for step, distance in (
            (-dx, x - self.left),
            (dx, self.right - x),
            (-dy, y - self.top),
            (dy, self.bottom - y),
        ):
            if step == 0:
                # The line is parallel to this side, and may be outside as a whole.
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
    """The size of a plot, and the things in it that names should not cover."""

    width: float
    height: float
    marks: Sequence[Point] = ()
    lines: Sequence[tuple[Point, Point]] = ()
    texts: Sequence[Box] = ()
    """Boxes of texts that the plot has already."""


def place_names(names: Sequence[Name], plot: Plot) -> list[Point]:
    """Return the centre of each name.

    Names are placed one after another, beginning with those of crowded marks. Each name gets the
    best of a fixed number of places around its mark. Nothing is random.
    """
    places: list[Point] = [(0.0, 0.0)] * len(names)
    taken = list(plot.texts)
    # Lines from the marks to the names that are placed already.
    leaders: list[tuple[Point, Point]] = []
    crowded_first = sorted(range(len(names)), key=lambda number: -_crowd(names[number], plot))
    for number in crowded_first:
        name = names[number]
        candidates = list(_candidates(name))
        costs = [_cost(name, centre, plot, taken, leaders) for centre in candidates]
        best = candidates[costs.index(min(costs))]
        places[number] = best
        taken.append(Box.around(best, name.width, name.height))
        leaders.append((name.mark, best))
    return places


def _crowd(name: Name, plot: Plot) -> float:
    """Return how crowded the surroundings of a mark are. Near marks count more."""
    return sum(1 / (20.0 + math.dist(name.mark, mark)) for mark in plot.marks)


def _candidates(name: Name) -> Iterator[Point]:
    """Yield centres of the text on rings around its mark, beginning with the nearest ring."""
    x, y = name.mark
    for radius in _RADII:
        for number in range(_ANGLES):
            angle = 2 * math.pi * number / _ANGLES
            across, down = math.cos(angle), math.sin(angle)
            # In every direction, the box touches a circle around the mark from outside.
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
    """Compute the cost of a name's place.

    Args:
        name: The name.
        centre: Its place.
        plot: Marks, lines and size of the plot.
        taken: Boxes of all texts so far.
        leaders: Lines from the names that are placed already to their marks.
    """
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
    # The thin line from a name to its mark should not run through another name, and no such line of
    # another name through this one.
    cost += _ON_MARK * sum(box.is_crossed(*leader) for leader in leaders)
    cost += _ON_MARK * sum(other.is_crossed(name.mark, centre) for other in taken)
    return cost


@dataclass(frozen=True)
class _Cluster:
    """Neighbours on a line that touch each other and move together."""

    mean: float
    """Mean place that they wish for, without the distances between them."""
    size: int

    def merged(self, other: _Cluster) -> _Cluster:
        """Return both clusters as one."""
        size = self.size + other.size
        return _Cluster((self.mean * self.size + other.mean * other.size) / size, size)


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Move places on a line so far that neighbours are apart, and as little as possible.

    The places keep their order. Clusters are merged and centred on the mean of their wishes, which
    is the least-squares solution (pool adjacent violators).

    Args:
        places: Wished places of texts.
        apart: Least distance of two texts.
        low: Start of the line.
        high: End of the line. Texts that the line has no room for go beyond it.
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    # Subtracting the least distances leaves an isotonic regression: neighbours must be in order.
    clusters: list[_Cluster] = []
    for rank, number in enumerate(order):
        clusters.append(_Cluster(places[number] - rank * apart, 1))
        while len(clusters) > 1 and clusters[-2].mean > clusters[-1].mean:
            last = clusters.pop()
            clusters[-1] = clusters[-1].merged(last)

    last_start = max(low, high - (len(places) - 1) * apart)
    moved = [0.0] * len(places)
    rank = 0
    for cluster in clusters:
        start = min(max(cluster.mean, low), last_start)
        for _ in range(cluster.size):
            moved[order[rank]] = start + rank * apart
            rank += 1
    return moved
