"""Placement of labels beside their points, so that they do not overlap.

Greedy: each label is put on the first side on which it overlaps no earlier label, no labelled point
and no edge; if there is none, on the side with the least overlap; and if that covers too much of
the label, on no side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Size = tuple[float, float]
"""Width and height in pixels."""
MEDIUM: Size = (520.0, 330.0)
"""Plot area of a panel if there are several beside each other."""
LARGE: Size = (1060.0, 500.0)
"""Plot area of a page's only panel."""
COVERED = 0.4
"""Largest share of a label that may be overlapped."""
_CHARACTER, _LINE, _GAP = 6.6, 15.0, 13.0
_MARK = 10.0
"""Half the side of a marked point: of the ring of a best setting, and of the goal's star."""
_SIDES = (
    *("middle right", "top center", "bottom center", "middle left"),
    *("top right", "bottom right", "top left", "bottom left"),
)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Label:
    """A name at a point; the page filters by `family` and `rate`."""

    text: str
    at: tuple[float, float]
    family: str
    rate: float | None


def place(
    labels: Sequence[Label],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    size: Size = MEDIUM,
    covered: float = COVERED,
) -> list[tuple[Label, str | None]]:
    """Find the side of each label, by Plotly's name; None if there is no room.

    covered  largest share of a label that may be overlapped
    """
    pixels = [
        (
            (label.at[0] - x_range[0]) / (x_range[1] - x_range[0]) * size[0],
            (y_range[1] - label.at[1]) / (y_range[1] - y_range[0]) * size[1],
        )
        for label in labels
    ]
    occupied: list[Box] = [(x - _MARK, y - _MARK, x + _MARK, y + _MARK) for x, y in pixels]
    placed: list[tuple[Label, str | None]] = []
    for index, (label, pixel) in enumerate(zip(labels, pixels, strict=True)):
        others = occupied[:index] + occupied[index + 1 :]
        boxes = {side: _box(label.text, pixel, side) for side in _SIDES}
        costs = {side: _cost(box, others, size) for side, box in boxes.items()}
        side = min(_SIDES, key=costs.__getitem__)
        room = costs[side] <= covered * _CHARACTER * len(label.text) * _LINE
        if room:
            occupied.append(boxes[side])
        placed.append((label, side if room else None))
    return placed


def _box(text: str, pixel: tuple[float, float], side: str) -> Box:
    """Compute left, top, right, bottom in pixels; y points down."""
    x, y = pixel
    width = _CHARACTER * len(text)
    vertical, horizontal = side.split()
    left = {"left": x - _GAP - width, "center": x - width / 2, "right": x + _GAP}[horizontal]
    top = {"top": y - _GAP - _LINE, "middle": y - _LINE / 2, "bottom": y + _GAP}[vertical]
    return left, top, left + width, top + _LINE


def _cost(box: Box, others: Sequence[Box], size: Size) -> float:
    """Compute the overlapping area, plus 30 times the length outside the panel."""
    left, top, right, bottom = box
    out = max(0.0, -left) + max(0.0, right - size[0]) + max(0.0, -top) + max(0.0, bottom - size[1])
    return 30 * out + sum(
        max(0.0, min(right, o[2]) - max(left, o[0])) * max(0.0, min(bottom, o[3]) - max(top, o[1]))
        for o in others
    )
