"""Sheets: figures that are laid out in pixels from the top left corner.

A part of a sheet is a plot with axes of its own at a place of the sheet (`Sheet.plot`), or a text
(`Sheet.write`). `MethodPlot` is a plot with a line for each method. Names stand at the lines
instead of a legend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import plotly.graph_objects as go

from ..formatting import signed
from ..strip import Scale
from .notebook import TEMPLATE, Canvas
from .palette import GRID, INK, MUTED, meta

HEAD = 40
"""Pixels above a plot of methods, for the names of start and retain model."""
FOOT = 44
"""Pixels below a plot of methods, for its axis."""
SMALL_FONT = {"size": 11, "color": MUTED}
"""Font of numbers and of the names of start and retain model."""
_NEAR_START, _NEAR_END = 0.2, 0.8
"""Fractions of an axis beyond which a centred text would leave the plot."""


class Area(NamedTuple):
    """A rectangle of a sheet, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Right end."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Lower end."""
        return self.top + self.height


class _Note(NamedTuple):
    """A text at a place of a sheet."""

    left: float
    top: float
    keys: dict[str, Any]
    """Keys of Plotly's annotation, without its place."""


class Sheet:
    """A figure whose plots and texts stand at places in pixels from its top left corner."""

    def __init__(self, width: float) -> None:
        """Begin a sheet.

        Args:
            width: Pixels. The height is known when the sheet is finished.
        """
        self.width = width
        self.traces: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self._notes: list[_Note] = []
        self._axes: dict[str, dict[str, Any]] = {}
        self._areas: list[Area] = []

    def plot(self, area: Area, x: dict[str, Any], y: dict[str, Any]) -> str:
        """Add a plot.

        Args:
            area: Place of the plot, without the numbers at its axes.
            x: Keys of the horizontal axis.
            y: Keys of the vertical axis.

        Returns:
            Suffix by which Plotly tells its axes from those of other plots: `""`, `"2"`, `"3"`.
        """
        self._areas.append(area)
        suffix = _suffix(len(self._areas))
        self._axes[f"xaxis{suffix}"] = {"anchor": f"y{suffix}", "zeroline": False, **x}
        self._axes[f"yaxis{suffix}"] = {"anchor": f"x{suffix}", "zeroline": False, **y}
        return suffix

    def add(self, plot: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> None:
        """Add marks or lines to a plot.

        Args:
            plot: Suffix of the plot's axes.
            x: Values on the horizontal axis.
            y: Values on the vertical axis.
            more: Further keys of the trace.
        """
        self.traces.append(
            {
                "type": "scatter",
                "showlegend": False,
                "hoverinfo": "skip",
                "cliponaxis": False,
                "x": [*x],
                "y": [*y],
                "xaxis": f"x{plot}",
                "yaxis": f"y{plot}",
                **more,
            }
        )

    def write(self, text: str, left: float, top: float, **more: Any) -> None:
        """Write a text.

        Args:
            text: The text, already escaped.
            left: Place of its left end, or of the end or centre that `xanchor` names.
            top: Place of its vertical middle.
            more: Further keys of Plotly's annotation.
        """
        keys: dict[str, Any] = {
            "text": text,
            "showarrow": False,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "middle",
            "font": {"size": 12, "color": INK},
            **more,
        }
        self._notes.append(_Note(left, top, keys))

    def figure(self, height: float, size: Canvas) -> go.Figure:
        """Finish the sheet.

        Args:
            height: Pixels.
            size: Size in print.
        """
        # Plotly states places as fractions of width and height, and counts heights from below.
        for number, area in enumerate(self._areas, start=1):
            suffix = _suffix(number)
            x_domain = [area.left / self.width, area.right / self.width]
            y_domain = [max(0.0, 1 - area.bottom / height), 1 - area.top / height]
            self._axes[f"xaxis{suffix}"]["domain"] = x_domain
            self._axes[f"yaxis{suffix}"]["domain"] = y_domain
        annotations = [
            {**note.keys, "x": note.left / self.width, "y": 1 - note.top / height}
            for note in self._notes
        ]
        figure: Any = go.Figure(self.traces)
        return figure.update_layout(
            template=TEMPLATE,
            width=round(self.width),
            height=round(height),
            margin={"l": 0, "r": 0, "t": 0, "b": 0},
            shapes=self.shapes,
            annotations=annotations,
            meta=size.meta,
            **self._axes,
        )


def _suffix(number: int) -> str:
    """Return the suffix of a plot's axes. The first plot has none."""
    return "" if number == 1 else str(number)


class MethodPlot:
    """A plot with a line for each method, the first one on top, and a number on the other axis."""

    def __init__(self, sheet: Sheet, area: Area, scale: Scale, title: str, count: int) -> None:
        """Add the plot to a sheet.

        Args:
            sheet: The sheet.
            area: Place of the plot. `HEAD` pixels above it and `FOOT` pixels below it are needed.
            scale: Axis of the number.
            title: Title of the axis.
            count: Number of methods.
        """
        self._sheet = sheet
        self._area = area
        self._scale = scale
        self._count = count
        self._suffix = sheet.plot(area, _number_axis(scale, title), _method_axis(count))

    def add(self, x: Sequence[float], y: Sequence[float], **more: Any) -> None:
        """Add marks or lines. `y` are numbers of methods, which count from 0."""
        self._sheet.add(self._suffix, x, y, **more)

    def add_references(self, start: float | None, retain: float | None) -> None:
        """Draw start and retain model as lines through all methods, with their names above.

        The start model's line is dotted and begins at a hollow square. The retain model's line is
        solid and begins at a star. Each name has a line of text for itself, because both models may
        be close to each other.

        Args:
            start: Number of the start model. None leaves it out.
            retain: Number of the retain model. None leaves it out.
        """
        name_top = self._area.top - HEAD + 8
        if start is not None:
            self._add_reference("start", start, "dot", "square-open", name_top)
        if retain is not None:
            self._add_reference("retain", retain, "solid", "star", name_top + 13)

    def _add_reference(
        self, name: str, value: float, dash: str, symbol: str, name_top: float
    ) -> None:
        tags = meta("reference", name=name)
        ends = [-0.5, self._count - 0.5]
        stroke = {"color": MUTED, "width": 1.2, "dash": dash}
        self.add([value, value], ends, mode="lines", line=stroke, meta=tags)
        mark = {"color": INK, "symbol": symbol, "size": 8}
        self.add([value], [-0.5], mode="markers", marker=mark, meta=tags)

        share = self._scale.percent(value) / 100
        width = self._area.right - self._area.left
        left = self._area.left + share * width
        anchor = "center"
        if share < _NEAR_START:
            anchor = "left"
        elif share > _NEAR_END:
            anchor = "right"
        text = f"{name} {signed(value, 2)}"
        self._sheet.write(text, left, name_top, xanchor=anchor, font=SMALL_FONT)


def name_width(texts: Iterable[str], sheet_width: float, letter: float) -> float:
    """Estimate the pixels that texts take beside a plot, at most half of the sheet.

    Args:
        texts: Texts of one font size.
        sheet_width: Pixels of the sheet.
        letter: Mean width of a letter in pixels.
    """
    longest = max((len(text) for text in texts), default=0)
    return min(sheet_width / 2, 20 + letter * longest)


def _number_axis(scale: Scale, title: str) -> dict[str, Any]:
    """Return the keys of a horizontal axis with round numbers."""
    ticks = scale.ticks
    return {
        "range": [scale.low, scale.high],
        "tickvals": [value for value, _ in ticks],
        "ticktext": [text for _, text in ticks],
        "title": {"text": escape(title), "standoff": 4},
        "showgrid": False,
        "showline": True,
        "linecolor": GRID,
    }


def _method_axis(count: int) -> dict[str, Any]:
    """Return the keys of a vertical axis with a line for each method, the first one on top."""
    return {
        "range": [count - 0.5, -0.5],
        "tickvals": [*range(count)],
        "showticklabels": False,
        "gridcolor": GRID,
    }
