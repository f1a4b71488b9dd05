"""Figures for a paper with a line for each method: what lasts, and how sure the order is.

They show what the sections *Does it last?* and *How sure* of the page show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import plotly.graph_objects as go

from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.pairs import PairTable, Verdict
from unlearnbench.analysis.recovery import PanelRecovery, Recovery
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.results.table import TableRow

from ..strip import SYMBOLS, Scale
from .notebook import canvas
from .palette import GRID, INK, MUTED, Style, faded, meta
from .sheet import FOOT, HEAD, SMALL_FONT, Area, MethodPlot, Sheet, name_width

_LINE = 30
"""Pixels of a method's line with two lines of text."""
_SHORT_LINE = 20
"""Pixels of a method's line with one line of text."""
_GAP = 26
"""Pixels between plots that stand side by side."""
_TITLE = 18
"""Pixels of a panel's title."""
_SIGN = 18
"""Pixels of a cell in the table of pairs, and of a line with a key."""
_TOP = 8.0
"""Pixels above everything."""
_LEFT = 8
"""Pixels to the left of all texts."""
_RIGHT = 14
"""Pixels to the right of all plots."""
_LETTER, _SMALL_LETTER = 7.0, 5.4
"""Mean widths in pixels of a letter of a name, and of the smaller text below it."""
_LEAST_PLOT = 130
"""Pixels that each of two plots needs if the table of pairs stands beside them."""
_KEY_FONT = {"size": 10, "color": MUTED}

_BETTER = "#dbe8f4"
"""Colour of a cell of pairs if the method of the line is better."""
_SAME = "#e2e5e8"
"""Colour of a cell of pairs that compares a method with itself."""
KEY: Mapping[Verdict, str] = {
    Verdict.BETTER: "forgets more",
    Verdict.WORSE: "less",
    Verdict.UNDECIDED: "undecided",
    Verdict.INCOMPARABLE: "not comparable",
}
"""Meanings of the signs in the table of pairs."""


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
    style = Style.of(every)
    size = canvas(width)
    sheet = Sheet(size.pixels)
    top = _TOP
    for panel in panels:
        if len(panels) > 1:
            top = _panel_title(sheet, panel.place, top)
        top = _lasting_panel(sheet, panel, style, top)
    key = "○ before the attack   ● under the strongest one"
    sheet.write(key, _LEFT, top + 6, font=_KEY_FONT)
    return sheet.figure(top + _SIGN, size)


def _panel_title(sheet: Sheet, place: str, top: float) -> float:
    """Write a panel's title below `top`, and return where it ends."""
    sheet.write(f"<b>{escape(place)}</b>", _LEFT, top + _TITLE / 2)
    return top + _TITLE


def _lasting_panel(sheet: Sheet, panel: PanelRecovery, style: Style, top: float) -> float:
    """Draw a panel below `top`, and return where it ends."""
    names = [escape(line.method) for line in panel.methods]
    outcomes = [_outcome(line) for line in panel.methods]
    left = max(
        name_width(names, sheet.width, _LETTER),
        name_width(outcomes, sheet.width, _SMALL_LETTER),
    )
    area = Area(left, top + HEAD, sheet.width - left - _RIGHT, _LINE * len(names))
    scale = Scale.within(panel.column.bounds, _numbers_of(panel))
    plot = MethodPlot(sheet, area, scale, panel.column.label, len(names))
    plot.add_references(panel.start, panel.retain)
    for number, line in enumerate(panel.methods):
        middle = area.top + _LINE * (number + 0.5)
        colour = INK if line.share is not None else MUTED
        sheet.write(names[number], _LEFT, middle - 7)
        sheet.write(outcomes[number], _LEFT, middle + 7, font={"size": 10, "color": colour})
        _recovery_marks(plot, line, number, style)
    return area.bottom + FOOT


def _numbers_of(panel: PanelRecovery) -> list[float | None]:
    """List all numbers that are drawn in a panel."""
    numbers = [panel.start, panel.retain]
    for line in panel.methods:
        numbers += [line.before, line.after]
        numbers += [after for _, after in line.others]
    return numbers


def _recovery_marks(plot: MethodPlot, line: Recovery, number: int, style: Style) -> None:
    """Draw the numbers of a method: a ring before the attack, and filled marks under attacks."""
    if line.before is None:
        return
    # A method without a score is pale.
    alpha = 1.0 if line.strongest else 0.45
    colour = faded(style.colour(line.family), alpha)
    shape = style.shape(line.family)
    tags = meta("lasting", line.family)
    if line.others:
        values = [after for _, after in line.others]
        pale = {"color": faded(style.colour(line.family), 0.35), "size": 7, "symbol": shape}
        plot.add(values, [number] * len(values), mode="markers", marker=pale, meta=tags)
    if line.after is not None:
        ends = [line.before, line.after]
        stroke = {"color": colour, "width": 2.5}
        plot.add(ends, [number, number], mode="lines", line=stroke, meta=tags)
        mark = {"color": colour, "size": 10, "symbol": shape}
        plot.add([line.after], [number], mode="markers", marker=mark, meta=tags)
    # White inside, so that the line ends at the ring.
    ring = {
        "color": "#ffffff",
        "size": 8,
        "symbol": "circle",
        "line": {"color": colour, "width": 2},
    }
    plot.add([line.before], [number], mode="markers", marker=ring, meta=tags)


def _outcome(line: Recovery) -> str:
    """Write the share that comes back, or why there is none."""
    if line.share is None:
        return escape(line.reason.partition(":")[0])
    share = f"{100 * line.share:.0f} %"
    if line.interval is None:
        return f"{share} comes back"
    name = "min-max " if line.interval.is_range else ""
    ends = f"{name}[{100 * line.interval.low:.0f}, {100 * line.interval.high:.0f}]"
    return f"{share} {ends} comes back"


def pairs(
    panels: Sequence[Panel],
    tables: Sequence[PairTable],
    *,
    every: Sequence[TableRow],
    width: str | float | None = None,
) -> go.Figure:
    """Draw the methods' best settings with intervals, and which of every two is better.

    On a narrow sheet the table of pairs stands below the intervals, otherwise beside them.

    Args:
        panels: Models and splits.
        tables: Every two methods of each panel.
        every: All rows of the sweep, whose colours and shapes methods keep.
        width: See `notebook.fit`.
    """
    style = Style.of(every)
    size = canvas(width)
    sheet = Sheet(size.pixels)
    top = _TOP
    for panel, table in zip(panels, tables, strict=True):
        if len(panels) > 1:
            top = _panel_title(sheet, panel.place, top)
        top = _pairs_panel(sheet, panel, table, style, top)
    return sheet.figure(top, size)


def _pairs_panel(sheet: Sheet, panel: Panel, table: PairTable, style: Style, top: float) -> float:
    """Draw intervals and pairs of a panel below `top`, and return where they end."""
    names = [f"{number}  {escape(best.name)}" for number, best in enumerate(table.methods, 1)]
    left = name_width(names, sheet.width, _LETTER)
    table_width = _SIGN * len(table.methods)
    is_beside = sheet.width - left - table_width > 2 * _LEAST_PLOT
    right = sheet.width - _RIGHT - (table_width + _GAP if is_beside else 0)
    line = _SIGN if is_beside else _SHORT_LINE
    bottom = _intervals(sheet, panel, style, (left, right), top, line)
    if len(table.methods) > 1:
        if is_beside:
            _signs(sheet, table, right + _GAP, top + HEAD)
        else:
            _names(sheet, table.methods, bottom + _SIGN, _SIGN)
            bottom = _signs(sheet, table, left, bottom + _SIGN)
        key = "   ".join(f"{SYMBOLS[verdict]} {text}" for verdict, text in KEY.items())
        bottom += _SIGN
        sheet.write(key, _LEFT, bottom - 6, font=_KEY_FONT)
    return bottom + 6


def _intervals(
    sheet: Sheet,
    panel: Panel,
    style: Style,
    ends: tuple[float, float],
    top: float,
    line: float,
) -> float:
    """Draw a plot for each number of the headline, side by side.

    Args:
        sheet: The sheet.
        panel: The panel, whose best settings are drawn.
        style: Colours and shapes.
        ends: Left end of the first plot, and right end of the second one.
        top: Where the drawing begins.
        line: Pixels of a method's line.

    Returns:
        Where the drawing ends.
    """
    left, right = ends
    ranked = [best for best in panel.best if best.ranked is not None]
    height = line * len(ranked)
    width = (right - left - _GAP) / 2
    _names(sheet, ranked, top + HEAD, line)
    for place, metric in enumerate((panel.headline.forgotten, panel.headline.kept)):
        retain_row = panel.row("retain")
        start = panel.at_start(metric.column)
        retain = None if retain_row is None else retain_row.metrics.get(metric.column)
        scale = _scale_around(ranked, metric, start, retain)
        area = Area(left + place * (width + _GAP), top + HEAD, width, height)
        plot = MethodPlot(sheet, area, scale, metric.label, len(ranked))
        plot.add_references(start, retain)
        for number, best in enumerate(ranked):
            _interval_mark(plot, best, metric, number, style)
    return top + HEAD + height + FOOT


def _interval_mark(
    plot: MethodPlot, best: Best, metric: HeadlineMetric, number: int, style: Style
) -> None:
    """Draw the number of a best setting with its interval.

    The mark is hollow if there is no interval, or only the range of two seeds.
    """
    setting = best.setting
    value = None if setting is None else setting.metrics.get(metric.column)
    if setting is None or value is None:
        return
    colour = style.colour(best.family)
    tags = meta("interval", best.family)
    interval = setting.interval(metric.column)
    if interval is not None:
        ends = [interval.low, interval.high]
        stroke = {"color": colour, "width": 2.5}
        plot.add(ends, [number, number], mode="lines", line=stroke, meta=tags)
    is_filled = interval is not None and not interval.is_range
    mark = {
        "color": colour if is_filled else "#ffffff",
        "size": 8,
        "symbol": style.shape(best.family),
        "line": {"color": colour, "width": 0 if is_filled else 2},
    }
    plot.add([value], [number], mode="markers", marker=mark, meta=tags)


def _scale_around(
    ranked: Iterable[Best], metric: HeadlineMetric, start: float | None, retain: float | None
) -> Scale:
    """Return an axis that contains all numbers and intervals."""
    values = [start, retain]
    for best in ranked:
        if best.setting is None:
            continue
        values.append(best.setting.metrics.get(metric.column))
        interval = best.setting.interval(metric.column)
        if interval is not None:
            values += [interval.low, interval.high]
    return Scale.around(values)


def _names(sheet: Sheet, methods: Sequence[Best], top: float, line: float) -> None:
    """Write the numbers and names of methods below `top`, a line each."""
    for number, best in enumerate(methods):
        middle = top + line * (number + 0.5)
        sheet.write(f"{number + 1}", _LEFT, middle, font=SMALL_FONT)
        sheet.write(escape(best.name), 26, middle)


def _signs(sheet: Sheet, table: PairTable, left: float, top: float) -> float:
    """Draw the table of pairs with its heads above `top`, and return where it ends.

    A sign says how the method of the line compares with the method of the column.
    """
    count = len(table.methods)
    size = _SIGN * count
    blank = {"showgrid": False, "showticklabels": False}
    x_axis = {**blank, "range": [-0.5, count - 0.5]}
    y_axis = {**blank, "range": [count - 0.5, -0.5]}
    plot = sheet.plot(Area(left, top, size, size), x_axis, y_axis)
    for line, method in enumerate(table.methods):
        middle = left + _SIGN * (line + 0.5)
        sheet.write(f"{line + 1}", middle, top - 9, xanchor="center", font=SMALL_FONT)
        for column, other in enumerate(table.methods):
            if other is method:
                _cell(sheet, plot, column, line, _SAME)
                continue
            verdict = table.pairs[method.name, other.name].verdict
            if verdict is Verdict.BETTER:
                _cell(sheet, plot, column, line, _BETTER)
            is_decided = verdict in (Verdict.BETTER, Verdict.WORSE)
            sheet.write(
                SYMBOLS[verdict],
                left + _SIGN * (column + 0.5),
                top + _SIGN * (line + 0.5),
                xanchor="center",
                font={"size": 11, "color": INK if is_decided else MUTED},
            )
    sheet.shapes.append(
        {
            "type": "rect",
            "xref": f"x{plot}",
            "yref": f"y{plot}",
            "x0": -0.5,
            "x1": count - 0.5,
            "y0": -0.5,
            "y1": count - 0.5,
            "line": {"color": GRID, "width": 1},
        }
    )
    # A plot without a trace is not drawn.
    sheet.add(plot, [0], [0], mode="markers", marker={"opacity": 0}, meta=meta("pairs"))
    return top + size


def _cell(sheet: Sheet, plot: str, column: int, line: int, colour: str) -> None:
    """Fill a cell of the table of pairs."""
    sheet.shapes.append(
        {
            "type": "rect",
            "xref": f"x{plot}",
            "yref": f"y{plot}",
            "layer": "below",
            "x0": column - 0.5,
            "x1": column + 0.5,
            "y0": line - 0.5,
            "y1": line + 0.5,
            "fillcolor": colour,
            "line": {"width": 0},
        }
    )
