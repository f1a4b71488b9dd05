"""Figures at a width in print: fonts, marks, legends and margins in proportion to it.

A figure for a screen says its names in 12 pixels beside lines and marks that suit them. In a
paper's column, 312 pixels wide at 96 an inch, the same sizes would leave a third of the picture to
the plot, so the legends go below it, panels below each other, and marks become smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from unlearnbench.errors import UnlearnbenchError

WIDTHS = {"column": 3.25, "text": 6.75}
"""Inches of a column and of the text, in the usual templates of conferences."""
POINTS = {"column": 8.0, "text": 9.0}
"""Font size at these widths."""
DPI = 300
"""Dots per inch of a PNG."""
PIXELS = 96
"""Pixels per inch of a page in a browser, and so of Plotly's sizes."""
SCREEN_FONT = 12.0
"""Pixels of the font that figures for a screen have, and that their marks suit."""
_LEAST, _MOST = 1.0, 30.0
"""Inches of a figure."""
_BESIDE = 2
"""Most panels beside each other that leave room for a legend beside them."""
_SMALL = 260.0
"""Pixels of a panel below which its notes are short."""
_NARROW = 5.0
"""Inches below which legends are below the plot."""
_CHARACTER = 0.54
"""Mean width of a character, as a share of the font size."""
_KEY = 44.0
"""Pixels before and behind a legend's text: Plotly draws no narrower key."""
_LINE = 19.0
"""Pixels of a legend's line: Plotly makes none lower."""


@dataclass(frozen=True)
class PrintSize:
    """Width, font and legend of a figure, as its reader asked for them."""

    width: float | None = None
    """Inches; None for that on a screen."""
    font: float = SCREEN_FONT
    """Pixels."""
    legend: bool = True

    @classmethod
    def of(
        cls, width: str | float | None, font_size: float | None, *, legend: bool
    ) -> PrintSize | None:
        """Read what was asked for; None where nothing was.

        width      `column`, `text`, or inches
        font_size  points (1/72 inch)

        Raises: UnlearnbenchError for a width or size outside of what can be drawn.
        """
        if width is None and font_size is None and legend:
            return None
        inches = WIDTHS.get(width) if isinstance(width, str) else width
        if (isinstance(width, str) and inches is None) or not _within(inches, _LEAST, _MOST):
            raise UnlearnbenchError(
                f"width {width!r}: give {', '.join(WIDTHS)}, or {_LEAST:g} to {_MOST:g} inches"
            )
        if not _within(font_size, 4, 40):
            raise UnlearnbenchError(f"font size {font_size!r}: give 4 to 40 points")
        usual = SCREEN_FONT * 72 / PIXELS
        if inches is not None:
            usual = POINTS["column" if inches < _NARROW else "text"]
        points = usual if font_size is None else font_size
        return cls(inches, points * PIXELS / 72, legend)

    @property
    def narrow(self) -> bool:
        """True if legends go below the plot, and panels below each other."""
        return self.width is not None and self.width < _NARROW

    @property
    def left(self) -> float:
        """Pixels beside the plot, of the axis."""
        return self.font * 4.2

    @property
    def between(self) -> float:
        """Pixels between panels beside each other."""
        return self.font * 3.6

    def beside(self, columns: int) -> bool:
        """True if the legend is beside the plot."""
        return self.legend and not self.narrow and columns <= _BESIDE

    def right(self, columns: int) -> float:
        """Pixels beside the plot, of a legend that is there."""
        return self.font * (13.8 if self.beside(columns) else 0.8)

    def plot(self, columns: int) -> tuple[float, float]:
        """Width and height of a panel's plot area on a page of this width, in pixels."""
        outer = (self.width or 0.0) * PIXELS
        inner = outer - self.left - self.right(columns) - (columns - 1) * self.between
        width = max(inner / columns, 60.0)
        return width, width * (0.82 if columns == 1 and self.narrow else 0.75)


def _within(value: float | None, low: float, high: float) -> bool:
    return value is None or low <= value <= high


def fit(figure: Any, size: PrintSize, rows: int, columns: int) -> go.Figure:
    """Give a figure with `rows` × `columns` panels its size in print, in place."""
    font = size.font
    if not size.legend:
        figure.data = [one for one in figure.data if not _listed(one)]
        figure.update_traces(showlegend=False)
    if size.width is not None or font != SCREEN_FONT:
        _scale(figure, font, font / SCREEN_FONT * (0.72 if size.narrow else 1.0))
    if size.width is None:
        if not size.legend:
            figure.update_layout(width=figure.layout.width - 120, margin={"r": 24})
        return figure
    width = size.width * PIXELS
    titled, named = bool(figure.layout.title.text), bool(_titles(figure))
    top = font * ((2.2 if titled else 0.2) + (1.8 if named else 1.0))
    names = _entries(figure)
    legends = 0 if size.beside(columns) else _columns(names, size)
    lines = -(-len(names) // legends) if legends else 0
    bottom, below = font * 3.4, lines * max(_LINE, 1.3 * font) + (0.6 * font if lines else 0.0)
    gap = font * (3.6 if rows > 1 else 0.0)
    inside = size.plot(columns)[1] * rows + gap * (rows - 1)
    whole = top + inside + bottom + below
    left, right = size.left, size.right(columns)
    figure.update_layout(
        width=round(width),
        height=round(whole),
        margin={"l": left, "r": right, "t": top, "b": bottom + below, "pad": 0},
        title={"y": 1 - 0.5 * font / whole, "font": {"size": font * 1.15}},
        meta={"dpi": DPI},
    )
    inner = width - left - right
    _arrange(figure, rows, columns, size.between / inner, gap / inside)
    if legends:
        starts = [(0.03 * left + width * one / legends - left) / inner for one in range(legends)]
        _legends_below(figure, lines, starts, -bottom / inside)
    elif size.legend:
        _legends_beside(figure, font, inside)
    if size.plot(columns)[0] < _SMALL:
        _shorten_levels(figure)
    return figure


def _arrange(figure: Any, rows: int, columns: int, across: float, down: float) -> None:
    """Place the panels, with shares of the plot between them, and their titles above them."""
    titles = iter([note for note in figure.layout.annotations if note.name is None and note.text])
    wide, high = (1 - across * (columns - 1)) / columns, (1 - down * (rows - 1)) / rows
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        left, top = column * (wide + across), 1 - row * (high + down)
        number = "" if place == 0 else str(place + 1)
        ends = {"x": (left, left + wide), "y": (top - high, top)}
        shown = True
        for name, (low, end) in ends.items():
            axis = figure.layout[f"{name}axis{number}"]
            axis.domain = (max(low, 0.0), min(end, 1.0))
            axis.automargin = False
            shown = axis.visible is not False
        # A figure of one panel alone has its title elsewhere, or none.
        if shown and (title := next(titles, None)) is not None and title.xref == "paper":
            title.update(x=left + wide / 2, y=top)


def _scale(figure: Any, font: float, marks: float) -> None:
    """Set the sizes of all texts, and multiply those of lines and marks."""
    figure.update_layout(font={"size": font}, title={"font": {"size": font * 1.4}})
    # The axis title stands off by less where the font is small.
    title = {"font": {"size": font}, "standoff": font / 3}
    figure.update_xaxes(tickfont={"size": font * 0.92}, title=title)
    figure.update_yaxes(tickfont={"size": font * 0.92}, title=title)
    for note in figure.layout.annotations:
        note.font.size = font * (0.94 if note.name is None else 0.9)
    for shape in figure.layout.shapes:
        if shape.line.width:
            shape.line.width *= marks
    for trace in figure.data:
        if trace.textfont is not None and trace.textfont.size:
            trace.textfont.size = font * 0.96
        for part in (trace.line, trace.marker.line):
            if part.width:
                part.width *= marks
        for bars in (trace.error_x, trace.error_y):
            if bars.thickness:
                bars.thickness *= marks
            if bars.width:
                bars.width *= marks
        size = trace.marker.size
        if size is not None:
            several = isinstance(size, tuple | list)
            trace.marker.size = [one * marks for one in size] if several else size * marks
    for name in ("legend", "legend2", "legend3"):
        figure.update_layout({name: {"font": {"size": font * 0.96}}})


def _titles(figure: Any) -> list[str]:
    """Titles of panels: the notes that have no name."""
    return [note.text for note in figure.layout.annotations if note.name is None and note.text]


def _listed(trace: Any) -> bool:
    """True for a trace that is drawn in a legend only."""
    return bool(trace.meta) and trace.meta.get("role") == "legend"


def _entries(figure: Any) -> list[str]:
    """Texts of all legends."""
    return [trace.name for trace in figure.data if trace.showlegend is not False]


def _columns(names: list[str], size: PrintSize) -> int:
    """Entries of a legend that have room beside each other; 0 without any."""
    if not names:
        return 0
    widest = _KEY + max(map(len, names)) * _CHARACTER * size.font
    return max(1, min(len(names), int((size.width or 0.0) * PIXELS / widest)))


def _legends_below(figure: Any, lines: int, starts: list[float], top: float) -> None:
    """Divide all entries into columns that start there: a legend each, from `top` down."""
    entries = [trace for trace in figure.data if trace.showlegend is not False]
    order = ["legend", "legend2", "legend3"]
    entries.sort(key=lambda trace: order.index(trace.legend or "legend"))
    for column, start in enumerate(starts):
        name = "legend" if column == 0 else f"legend{column + 1}"
        for trace in entries[column * lines : (column + 1) * lines]:
            trace.legend = name
        # Of the paper: legends in the figure's own shares would push the plot aside.
        place = {"xref": "paper", "xanchor": "left", "yref": "paper", "yanchor": "top"}
        where = {"orientation": "v", "x": start, "y": top}
        style: dict[str, Any] = {"tracegroupgap": 0, "bgcolor": "rgba(0,0,0,0)", "title": None}
        style["font"] = {"size": figure.layout.font.size * 0.96}
        figure.update_layout({name: {**place, **where, **style}})


def _legends_beside(figure: Any, font: float, height: float) -> None:
    """Put all legends to the right of the plot, `height` pixels high, below each other."""
    at = 1.0
    for name in ("legend", "legend2", "legend3"):
        entries = [
            t for t in figure.data if t.showlegend is not False and (t.legend or "legend") == name
        ]
        place = {"xref": "paper", "xanchor": "left", "yref": "paper", "yanchor": "top"}
        where = {"orientation": "v", "x": 1.01, "y": at}
        figure.update_layout({name: {**place, **where, "tracegroupgap": 0}})
        at -= (len(entries) * max(_LINE, 1.5 * font) + font) / height


def _shorten_levels(figure: Any) -> None:
    """Shorten the names of the retain model's levels, and put those at the top below the line."""
    for note in figure.layout.annotations:
        if note.name != "retain":
            continue
        note.text = "retain"
        low, high = figure.layout[f"yaxis{note.yref[1:]}"].range
        near_top = (note.y - low) / (high - low) > 0.8
        note.yanchor = "top" if near_top else "bottom"
