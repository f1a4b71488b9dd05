"""Figures for a paper with a line for each method: what lasts, and how sure the order is.

They show what the sections *Does it last?* and *How sure* of the page show. Names stand at the
lines instead of a legend. A figure is laid out in pixels from the top. Each part of it is a plot
with axes of its own at a place of the sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.pairs import PairTable, Verdict
from unlearnbench.analysis.recovery import PanelRecovery, Recovery
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.results.table import TableRow

from ..formatting import signed
from ..strip import SYMBOLS, Scale
from .notebook import TEMPLATE, Canvas, canvas
from .palette import GRID, INK, MUTED, Style, faded, meta

_LINE = 30
"""Pixels of a method's line with two lines of text."""
_SHORT_LINE = 20
_HEAD, _FOOT, _GAP = 40, 44, 26
"""Pixels above a plot for the names of both models, below it for its axis, and between plots."""
_TITLE = 18
_SIGN = 18
"""Pixels of a cell in the table of pairs."""
_BETTER, _SAME = "#dbe8f4", "#e2e5e8"
KEY: Mapping[Verdict, str] = {
    Verdict.BETTER: "forgets more",
    Verdict.WORSE: "less",
    Verdict.UNDECIDED: "undecided",
    Verdict.INCOMPARABLE: "not comparable",
}


class Sheet:
    """A figure whose plots stand at places in pixels from its top left corner."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.traces: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.axes: dict[str, dict[str, Any]] = {}
        self._places: list[tuple[float, float, float, float]] = []

    def plot(
        self, left: float, top: float, width: float, height: float, **axes: dict[str, Any]
    ) -> str:
        """Add a plot.

        Args:
            left: Pixels.
            top: Pixels.
            width: Pixels.
            height: Pixels.
            axes: Settings of the axes `x` and `y`.

        Returns:
            Suffix of the names of its axes: `""`, `"2"`.
        """
        self._places.append((left, top, width, height))
        number = len(self._places)
        suffix = "" if number == 1 else str(number)
        self.axes[f"xaxis{suffix}"] = {"anchor": f"y{suffix}", "zeroline": False, **axes["x"]}
        self.axes[f"yaxis{suffix}"] = {"anchor": f"x{suffix}", "zeroline": False, **axes["y"]}
        return suffix

    def add(self, plot: str, x: Sequence[Any], y: Sequence[Any], **more: Any) -> None:
        """Add marks or lines to a plot."""
        base: dict[str, Any] = {
            "type": "scatter",
            "showlegend": False,
            "hoverinfo": "skip",
            "cliponaxis": False,
        }
        self.traces.append(
            base | {"x": [*x], "y": [*y], "xaxis": f"x{plot}", "yaxis": f"y{plot}"} | more
        )

    def write(self, text: str, left: float, top: float, **more: Any) -> None:
        """Write a text at a place in pixels; the place is its left end and its middle."""
        note: dict[str, Any] = {
            "text": text,
            "showarrow": False,
            "xref": "paper",
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "middle",
            "font": {"size": 12, "color": INK},
            "place": (left, top),
        }
        self.notes.append(note | more)

    def figure(self, height: float, made: Canvas) -> go.Figure:
        """Finish the sheet.

        Args:
            height: Pixels.
            made: Size in print.
        """
        for number, (left, top, width, tall) in enumerate(self._places, start=1):
            suffix = "" if number == 1 else str(number)
            self.axes[f"xaxis{suffix}"]["domain"] = [left / self.width, (left + width) / self.width]
            bottom = 1 - (top + tall) / height
            self.axes[f"yaxis{suffix}"]["domain"] = [max(0.0, bottom), 1 - top / height]
        for note in self.notes:
            left, top = note.pop("place")
            note["x"] = left / self.width
            note["y"] = 1 - top / height
        figure: Any = go.Figure(self.traces)
        return figure.update_layout(
            template=TEMPLATE,
            width=round(self.width),
            height=round(height),
            margin={"l": 0, "r": 0, "t": 0, "b": 0},
            shapes=self.shapes,
            annotations=self.notes,
            meta=made.meta,
            **self.axes,
        )


def lasting(
    panels: Sequence[PanelRecovery],
    *,
    every: Sequence[TableRow],
    width: str | float | None = None,
) -> go.Figure:
    """Draw each method's best setting from before to after the strongest attack.

    Args:
        panels: What attacks bring back, one plot for each.
        every: All rows of the sweep, whose colours and shapes methods keep.
        width: See `notebook.fit`.
    """
    style, made = Style.of(every), canvas(width)
    sheet = Sheet(made.pixels)
    top = 8.0
    for panel in panels:
        if len(panels) > 1:
            sheet.write(f"<b>{escape(panel.place)}</b>", 8, top + _TITLE / 2)
            top += _TITLE
        top = _lasting_panel(sheet, panel, style, top)
    key = "○ before the attack   ● under the strongest one"
    sheet.write(key, 8, top + 6, font={"size": 10, "color": MUTED})
    top += _SIGN
    return sheet.figure(top, made)


def _lasting_panel(sheet: Sheet, panel: PanelRecovery, style: Style, top: float) -> float:
    """Draw a panel below `top`, and return where it ends."""
    lines = panel.methods
    names = [escape(line.method) for line in lines]
    left = max(
        _name_width(names, sheet.width, 7.0), _name_width(map(_outcome, lines), sheet.width, 5.4)
    )
    height = _LINE * len(lines)
    scale = _scale_of(panel)
    plot = sheet.plot(
        left,
        top + _HEAD,
        sheet.width - left - 14,
        height,
        x=_x_axis(scale, panel.column.label),
        y=_line_axis(len(lines)),
    )
    _references(
        sheet, plot, scale, panel.start, panel.retain, len(lines), left, top, sheet.width - 14
    )
    for number, line in enumerate(lines):
        middle = top + _HEAD + _LINE * (number + 0.5)
        sheet.write(names[number], 8, middle - 7)
        colour = INK if line.share is not None else MUTED
        sheet.write(_outcome(line), 8, middle + 7, font={"size": 10, "color": colour})
        _recovery_marks(sheet, plot, line, number, style)
    return top + _HEAD + height + _FOOT


def _scale_of(panel: PanelRecovery) -> Scale:
    values = [panel.start, panel.retain]
    for line in panel.methods:
        values += [line.before, line.after, *(after for _, after in line.others)]
    return Scale.within(panel.column.bounds, values)


def _recovery_marks(sheet: Sheet, plot: str, line: Recovery, number: int, style: Style) -> None:
    if line.before is None:
        return
    alpha = 1.0 if line.strongest else 0.45
    colour = faded(style.colour(line.family), alpha)
    shape = style.shape(line.family)
    tags = meta("lasting", line.family)
    if line.others:
        values = [after for _, after in line.others]
        pale = {"color": faded(style.colour(line.family), 0.35), "size": 7, "symbol": shape}
        sheet.add(plot, values, [number] * len(values), mode="markers", marker=pale, meta=tags)
    if line.after is not None:
        both = [line.before, line.after]
        stroke = {"color": colour, "width": 2.5}
        sheet.add(plot, both, [number] * 2, mode="lines", line=stroke, meta=tags)
        mark = {"color": colour, "size": 10, "symbol": shape}
        sheet.add(plot, [line.after], [number], mode="markers", marker=mark, meta=tags)
    # White inside, so that the line ends at the ring.
    ring = {
        "color": "#ffffff",
        "size": 8,
        "symbol": "circle",
        "line": {"color": colour, "width": 2},
    }
    sheet.add(plot, [line.before], [number], mode="markers", marker=ring, meta=tags)


def _outcome(line: Recovery) -> str:
    """Write the share that comes back, or why there is none."""
    if line.share is None:
        return escape(line.reason.partition(":")[0])
    text = f"{100 * line.share:.0f} % comes back"
    if line.interval is None:
        return text
    name = "min-max " if line.interval.is_range else ""
    ends = f"{name}[{100 * line.interval.low:.0f}, {100 * line.interval.high:.0f}]"
    return f"{100 * line.share:.0f} % {ends} comes back"


def pairs(
    panels: Sequence[Panel],
    tables: Sequence[PairTable],
    *,
    every: Sequence[TableRow],
    width: str | float | None = None,
) -> go.Figure:
    """Draw the methods' best settings with intervals, and which of every two is better.

    In a column the table of pairs stands below the intervals, otherwise beside them.

    Args:
        panels: Models and splits.
        tables: Every two methods of each panel.
        every: All rows of the sweep, whose colours and shapes methods keep.
        width: See `notebook.fit`.
    """
    style, made = Style.of(every), canvas(width)
    sheet = Sheet(made.pixels)
    top = 8.0
    for panel, table in zip(panels, tables, strict=True):
        if len(panels) > 1:
            sheet.write(f"<b>{escape(panel.place)}</b>", 8, top + _TITLE / 2)
            top += _TITLE
        names = [f"{number}  {escape(best.name)}" for number, best in enumerate(table.methods, 1)]
        left = _name_width(names, sheet.width, 7.0)
        table_width = _SIGN * len(table.methods)
        is_beside = sheet.width - left - table_width > 2 * 130
        right = sheet.width - 14 - (table_width + _GAP if is_beside else 0)
        line = _SIGN if is_beside else _SHORT_LINE
        ranked = [best for best in panel.best if best.ranked is not None]
        bottom = _intervals(sheet, panel, ranked, style, (left, right), top, line)
        if len(table.methods) > 1:
            if is_beside:
                _signs(sheet, table, right + _GAP, top + _HEAD)
            else:
                _names(sheet, table.methods, bottom + _SIGN, _SIGN)
                bottom = _signs(sheet, table, left, bottom + _SIGN)
            key = "   ".join(f"{SYMBOLS[verdict]} {text}" for verdict, text in KEY.items())
            bottom += _SIGN
            sheet.write(key, 8, bottom - 6, font={"size": 10, "color": MUTED})
        top = bottom + 6
    return sheet.figure(top, made)


def _intervals(
    sheet: Sheet,
    panel: Panel,
    ranked: Sequence[Best],
    style: Style,
    across: tuple[float, float],
    top: float,
    line: float,
) -> float:
    """Draw both numbers of the best settings, and return where the plots end."""
    left, right = across
    height = line * len(ranked)
    width = (right - left - _GAP) / 2
    _names(sheet, ranked, top + _HEAD, line)
    for place, metric in enumerate((panel.headline.forgotten, panel.headline.kept)):
        retain_row = panel.row("retain")
        start = panel.at_start(metric.column)
        retain = None if retain_row is None else retain_row.metrics.get(metric.column)
        scale = _scale_around(ranked, metric, start, retain)
        begin = left + place * (width + _GAP)
        plot = sheet.plot(
            begin,
            top + _HEAD,
            width,
            height,
            x=_x_axis(scale, metric.label),
            y=_line_axis(len(ranked)),
        )
        _references(sheet, plot, scale, start, retain, len(ranked), begin, top, begin + width)
        for number, best in enumerate(ranked):
            setting = best.setting
            value = None if setting is None else setting.metrics.get(metric.column)
            if setting is None or value is None:
                continue
            colour = style.colour(best.family)
            tags = meta("interval", best.family)
            interval = setting.interval(metric.column)
            if interval is not None:
                ends = [interval.low, interval.high]
                stroke = {"color": colour, "width": 2.5}
                sheet.add(plot, ends, [number] * 2, mode="lines", line=stroke, meta=tags)
            is_known = interval is not None and not interval.is_range
            mark = {
                "color": colour if is_known else "#ffffff",
                "size": 8,
                "symbol": style.shape(best.family),
                "line": {"color": colour, "width": 0 if is_known else 2},
            }
            sheet.add(plot, [value], [number], mode="markers", marker=mark, meta=tags)
    return top + _HEAD + height + _FOOT


def _scale_around(
    ranked: Iterable[Best], metric: HeadlineMetric, start: float | None, retain: float | None
) -> Scale:
    values = [start, retain]
    for best in ranked:
        if best.setting is not None:
            values.append(best.setting.metrics.get(metric.column))
            interval = best.setting.interval(metric.column)
            values += [] if interval is None else [interval.low, interval.high]
    return Scale.around(values)


def _names(sheet: Sheet, methods: Sequence[Best], top: float, line: float) -> None:
    """Write the numbers and names of methods, a line each."""
    for number, best in enumerate(methods):
        middle = top + line * (number + 0.5)
        sheet.write(f"{number + 1}", 8, middle, font={"size": 11, "color": MUTED})
        sheet.write(escape(best.name), 26, middle)


def _signs(sheet: Sheet, table: PairTable, left: float, top: float) -> float:
    """Draw the table of pairs with its heads above `top`, and return where it ends."""
    methods = table.methods
    count = len(methods)
    size = _SIGN * count
    blank = {"showgrid": False, "showticklabels": False, "range": [-0.5, count - 0.5]}
    plot = sheet.plot(left, top, size, size, x=blank, y=blank | {"range": [count - 0.5, -0.5]})
    for number, best in enumerate(methods):
        sheet.write(
            f"{number + 1}",
            left + _SIGN * (number + 0.5),
            top - 9,
            xanchor="center",
            font={"size": 11, "color": MUTED},
        )
        for other_number, other in enumerate(methods):
            if other is best:
                _cell(sheet, plot, other_number, number, _SAME)
                continue
            verdict = table.pairs[best.name, other.name].verdict
            if verdict is Verdict.BETTER:
                _cell(sheet, plot, other_number, number, _BETTER)
            decided = verdict in (Verdict.BETTER, Verdict.WORSE)
            sheet.write(
                SYMBOLS[verdict],
                left + _SIGN * (other_number + 0.5),
                top + _SIGN * (number + 0.5),
                xanchor="center",
                font={"size": 11, "color": INK if decided else MUTED},
            )
    sheet.shapes += [
        {
            "type": "rect",
            **{"xref": f"x{plot}", "yref": f"y{plot}", "x0": -0.5, "x1": count - 0.5},
            **{"y0": -0.5, "y1": count - 0.5, "line": {"color": GRID, "width": 1}},
        }
    ]
    # A plot without a trace is not drawn.
    sheet.add(plot, [0], [0], mode="markers", marker={"opacity": 0}, meta=meta("pairs"))
    return top + size


def _cell(sheet: Sheet, plot: str, column: int, line: int, colour: str) -> None:
    """Fill a cell of the table of pairs."""
    sheet.shapes.append(
        {
            "type": "rect",
            **{"xref": f"x{plot}", "yref": f"y{plot}", "layer": "below"},
            **{"x0": column - 0.5, "x1": column + 0.5, "y0": line - 0.5, "y1": line + 0.5},
            **{"fillcolor": colour, "line": {"width": 0}},
        }
    )


def _name_width(texts: Iterable[str], width: float, letter: float) -> float:
    """Estimate the pixels that texts take beside a plot, at most half of the sheet.

    Args:
        texts: Of one size.
        width: Of the sheet.
        letter: Mean width of a letter.
    """
    longest = max((len(text) for text in texts), default=0)
    return min(width / 2, 20 + letter * longest)


def _x_axis(scale: Scale, title: str) -> dict[str, Any]:
    values = [value for value, _ in scale.ticks]
    return {
        "range": [scale.low, scale.high],
        "tickvals": values,
        "ticktext": [text for _, text in scale.ticks],
        "title": {"text": escape(title), "standoff": 4},
        "showgrid": False,
        "showline": True,
        "linecolor": GRID,
    }


def _line_axis(count: int) -> dict[str, Any]:
    """An axis of lines: one for each method, the first one above."""
    return {
        "range": [count - 0.5, -0.5],
        "tickvals": [*range(count)],
        "showticklabels": False,
        "gridcolor": GRID,
    }


def _references(
    sheet: Sheet,
    plot: str,
    scale: Scale,
    start: float | None,
    retain: float | None,
    count: int,
    left: float,
    top: float,
    right: float,
) -> None:
    """Draw both other models as lines through all methods, with their names above.

    The start model's line is dashed and begins at a hollow square, the retain model's is solid and
    begins at a star. They have a line of text each, because they may be close to each other.
    """
    width = right - left
    for value, name, dash, symbol, row in (
        (start, "start", "dot", "square-open", 0),
        (retain, "retain", "solid", "star", 1),
    ):
        if value is None:
            continue
        stroke = {"color": MUTED, "width": 1.2, "dash": dash}
        tags = meta("reference", name=name)
        ends = [-0.5, count - 0.5]
        sheet.add(plot, [value] * 2, ends, mode="lines", line=stroke, meta=tags)
        mark = {"color": INK, "symbol": symbol, "size": 8}
        sheet.add(plot, [value], [-0.5], mode="markers", marker=mark, meta=tags)
        share = scale.percent(value) / 100
        text = f"{name} {signed(value, 2)}"
        # Near an end of the axis the text ends, or begins, there.
        anchor = "left" if share < 0.2 else "right" if share > 0.8 else "center"
        sheet.write(
            text,
            left + share * width,
            top + 8 + 13 * row,
            xanchor=anchor,
            font={"size": 11, "color": MUTED},
        )
