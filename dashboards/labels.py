"""Where the names stand beside their points, so that they do not cover one another.

Greedy: each label takes the first side on which it hits no label placed before it, no point that
has a label, and no edge; where every side is taken, the side with the least overlap, and where that
is most of the name, no side: two names on one place are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Size = tuple[float, float]
"""Width and height in pixels."""
MEDIUM: Size = (520.0, 330.0)
"""Of a panel's inside on a page of middling width, several beside each other."""
LARGE: Size = (1060.0, 500.0)
"""Of the only panel of a page."""
_COVERED = 0.4
"""Share of a name that may be overlapped."""
_CHARACTER, _LINE, _GAP = 6.6, 15.0, 8.0
_SIDES = (
    *("middle right", "top center", "bottom center", "middle left"),
    *("top right", "bottom right", "top left", "bottom left"),
)

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Label:
    """A name at a point; `family` and `rate` are what the page filters by."""

    text: str
    at: tuple[float, float]
    family: str
    rate: float | None


def place(
    labels: Sequence[Label],
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    size: Size = MEDIUM,
) -> list[tuple[Label, str | None]]:
    """Each label with Plotly's name of the side it stands on; None where it has no room."""
    pixels = [
        (
            (label.at[0] - x_range[0]) / (x_range[1] - x_range[0]) * size[0],
            (y_range[1] - label.at[1]) / (y_range[1] - y_range[0]) * size[1],
        )
        for label in labels
    ]
    taken: list[Box] = [(x - 7, y - 7, x + 7, y + 7) for x, y in pixels]
    placed: list[tuple[Label, str | None]] = []
    for index, (label, pixel) in enumerate(zip(labels, pixels, strict=True)):
        others = taken[:index] + taken[index + 1 :]
        boxes = {side: _box(label.text, pixel, side) for side in _SIDES}
        costs = {side: _cost(box, others, size) for side, box in boxes.items()}
        side = min(_SIDES, key=costs.__getitem__)
        room = costs[side] <= _COVERED * _CHARACTER * len(label.text) * _LINE
        if room:
            taken.append(boxes[side])
        placed.append((label, side if room else None))
    return placed


def _box(text: str, pixel: tuple[float, float], side: str) -> Box:
    """Left, top, right, bottom in pixels; y runs downwards."""
    x, y = pixel
    width = _CHARACTER * len(text)
    vertical, horizontal = side.split()
    left = {"left": x - _GAP - width, "center": x - width / 2, "right": x + _GAP}[horizontal]
    top = {"top": y - _GAP - _LINE, "middle": y - _LINE / 2, "bottom": y + _GAP}[vertical]
    return left, top, left + width, top + _LINE


def _cost(box: Box, others: Sequence[Box], size: Size) -> float:
    """Area that overlaps, plus what sticks out of the panel, dearer."""
    left, top, right, bottom = box
    out = max(0.0, -left) + max(0.0, right - size[0]) + max(0.0, -top) + max(0.0, bottom - size[1])
    return 30 * out + sum(
        max(0.0, min(right, o[2]) - max(left, o[0])) * max(0.0, min(bottom, o[3]) - max(top, o[1]))
        for o in others
    )
