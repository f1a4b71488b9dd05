"""The trade-off panels, for the page, a notebook and a paper.

Every trace has its method, rate and role in `meta`, by which the page filters and recolours it.
Colours are those of the light page, and the page replaces them in dark mode.

`draw` makes a panel. `name_marks` then writes names into it, for a figure without a legend.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from unlearnbench.analysis.settings import Setting, panel_label
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import Interval

from ..formatting import interval_text, rate_text, signed
from .mark_names import Box, Name, Plot, Point, place_names
from .marks import AXIS, Figure, error_bars, level, note
from .palette import INK, MUTED, Style, faded, meta
from .tradeoff_data import TradeOffPanel, Trajectory, position

_PAD = 0.06
"""Fraction of the range of values that stays free at an end of an axis."""
_DIM = 0.3
"""Opacity of a line without a setting on the Pareto front."""

Extent = tuple[tuple[float, float], tuple[float, float]]
"""(kept from, to), (forgotten from, to)."""


def draw(panel: TradeOffPanel, style: Style, height: int = 400) -> Figure:
    """Draw one panel. A legend says which method a colour means."""
    shown = extent(panel)
    traces = [_trajectory(panel, trajectory, style) for trajectory in panel.trajectories]
    if len(panel.front) > 1:
        traces.append(_front(panel))
    traces += _best(panel, style, shown)
    traces += _references(panel, shown)
    return {"data": traces, "layout": _layout(panel, *shown, height)}


def extent(panel: TradeOffPanel) -> Extent:
    """Compute the first axis ranges of a panel."""
    points: list[TableRow | Setting] = [*panel.drawn]
    points += [model for model in (panel.fine_tuned, panel.retain) if model is not None]
    places = [position(point) for point in points]
    shown = [place for place in places if place is not None]
    for setting in panel.drawn:
        # The interval of a collapsed model is not drawn.
        if not panel.has_collapsed(setting):
            shown += _interval_ends(setting, panel)
    if panel.low is not None:
        shown = [(x, max(y, panel.low)) for x, y in shown]
    if not shown:
        shown = [(0.0, 0.0), (1.0, 1.0)]

    xs = [x for x, _ in shown]
    ys = [y for _, y in shown]
    if panel.significance is not None:
        ys += [0.0, 2 * panel.significance]
    # One value has no range, and an axis needs one.
    width = max(xs) - min(xs) or 0.1
    height = max(ys) - min(ys) or 0.1
    return (
        (min(xs) - _PAD * width, max(xs) + 0.1 * width),
        (min(ys) - _PAD * height, max(ys) + 2 * _PAD * height),
    )


def _interval_ends(setting: Setting, panel: TradeOffPanel) -> list[Point]:
    """Return the lower and the upper ends of both intervals; none unless both are known."""
    kept = setting.interval(panel.headline.kept.column)
    forgotten = setting.interval(panel.headline.forgotten.column)
    if kept is None or forgotten is None:
        return []
    return [(kept.low, forgotten.low), (kept.high, forgotten.high)]


def _layout(
    panel: TradeOffPanel, x_range: tuple[float, float], y_range: tuple[float, float], height: int
) -> Figure:
    """Make the layout. Shapes and notes have names, for tests and for the page."""
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    shapes: list[Figure] = []
    notes: list[Figure] = []
    if forgotten.better == "lower":
        notes.append(note("better", "better ↘", 1, 0, xanchor="right"))
    else:
        notes.append(note("better", "better ↗", 1, 1, xanchor="right"))
    if panel.significance is not None and forgotten.test is not None:
        shapes.append(level("significance", panel.significance, "dot"))
        text = f"p = {forgotten.test.level:g}"
        notes.append(note("significance", text, 0, panel.significance, yref="y", yanchor="top"))
    if panel.floor is not None:
        shapes.append(level("floor", panel.floor, "dash"))
        if panel.floor > y_range[0]:
            notes.append(note("floor", "lowest that n allows", 0, panel.floor, yref="y"))
    if panel.collapse_below is not None:
        shapes.append(_collapse_area(min(0.0, x_range[0]), panel.collapse_below))
        if panel.collapse_below > x_range[0]:
            notes.append(note("collapse", "collapsed", 0.01, 0.01))
    return {
        "xaxis": AXIS | {"title": {"text": kept.label, "standoff": 6}, "range": [*x_range]},
        "yaxis": AXIS | {"title": {"text": forgotten.label, "standoff": 4}, "range": [*y_range]},
        "shapes": shapes,
        "annotations": notes,
        "margin": {"l": 48, "r": 14, "t": 22, "b": 40},
        "height": height,
        "hovermode": "closest",
        "meta": {"title": panel_label(panel.model, panel.forget_fraction)},
    }


def _collapse_area(begin: float, end: float) -> Figure:
    """Shade the utilities of collapsed models, over the whole height of the plot."""
    return {
        "type": "rect",
        "name": "collapse",
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": faded(MUTED, 0.09),
        "yref": "paper",
        "x0": begin,
        "x1": end,
        "y0": 0,
        "y1": 1,
    }


class _LinePoint(NamedTuple):
    """A point of a method's line."""

    place: Point
    opacity: float
    size: float
    hover: str
    run: tuple[int, str]
    """Epoch and id of the run whose card a click opens."""
    kept: Interval | None = None
    """Interval of the utility, drawn as a horizontal bar."""
    forgotten: Interval | None = None
    """Interval of the other number, drawn as a vertical bar."""


def _trajectory(panel: TradeOffPanel, trajectory: Trajectory, style: Style) -> Figure:
    """Draw a setting epoch by epoch.

    A leading trajectory has a setting on the Pareto front or a best setting. All others are dots
    without a line. The page can join them.
    """
    settings = trajectory.points
    is_on_front = any(setting in panel.front for setting in settings)
    is_leading = is_on_front or any(best.setting in settings for best in panel.best)
    alpha = 0.8 if is_on_front else _DIM
    colour = style.colour(trajectory.family)
    bar_style = {"color": faded(colour, 0.45), "width": 0, "thickness": 1.2}
    points = _line_points(panel, settings, is_leading=is_leading)
    return {
        **_points([point.place for point in points]),
        "mode": "lines+markers" if is_leading else "markers",
        "name": html.escape(trajectory.method),
        "line": {
            "color": faded(colour, alpha),
            "width": 1.6,
            "dash": style.dashes[trajectory.learning_rate],
        },
        "marker": {
            "color": colour,
            "symbol": style.shape(trajectory.family, trajectory.method),
            "opacity": [point.opacity for point in points],
            "size": [point.size for point in points],
        },
        "error_x": error_bars([point.kept for point in points], **bar_style),
        "error_y": error_bars([point.forgotten for point in points], **bar_style),
        "hoverinfo": "text",
        "hovertext": [point.hover for point in points],
        "customdata": [list(point.run) for point in points],
        "meta": meta(
            "trajectory",
            trajectory.family,
            trajectory.learning_rate,
            method=trajectory.method,
            slot=style.slots[trajectory.family],
            alpha=alpha,
            leading=is_leading,
        ),
    }


def _line_points(
    panel: TradeOffPanel, settings: Sequence[Setting], *, is_leading: bool
) -> list[_LinePoint]:
    """List the points of a line: beaten settings are pale, and the last epoch is large."""
    points: list[_LinePoint] = []
    if panel.origin is not None and settings[0].epoch != 0:
        # The line begins at the start model, which has its own mark, so this point is invisible.
        points.append(_LinePoint(panel.origin, opacity=0.0, size=1.0, hover="", run=(0, "")))
    for setting in settings:
        place = position(setting)
        if place is None:
            continue
        # A collapsed model's interval says nothing, and its bars would cover the working ones.
        has_bars = is_leading and not panel.has_collapsed(setting)
        kept, forgotten = panel.headline.kept.column, panel.headline.forgotten.column
        points.append(
            _LinePoint(
                place,
                opacity=1.0 if setting in panel.front else 0.4,
                size=10.5 if setting is settings[-1] else 6.5,
                hover=_hover(setting, panel),
                run=(setting.epoch, setting.rows[0].run_id),
                kept=setting.interval(kept) if has_bars else None,
                forgotten=setting.interval(forgotten) if has_bars else None,
            )
        )
    return points


def _points(places: Sequence[Point]) -> Figure:
    """Begin a trace with the places of its points."""
    return {
        "type": "scatter",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "showlegend": False,
    }


def _front(panel: TradeOffPanel) -> Figure:
    """Draw the Pareto front as a staircase, because no setting lies between two of its points."""
    places = [position(setting) for setting in panel.front]
    # The page hides the front while a filter hides one of its settings.
    members = [
        [setting.family, rate_text(setting.learning_rate), setting.epoch] for setting in panel.front
    ]
    return {
        **_points([place for place in places if place is not None]),
        "mode": "lines",
        "name": "Pareto front",
        "line": {"color": faded(MUTED, 0.55), "width": 1.5, "shape": "vh"},
        "hoverinfo": "skip",
        "meta": meta("front", members=members),
    }


class _ReferenceMark(NamedTuple):
    """How a model is drawn that runs are compared with."""

    row: TableRow | None
    name: str
    explanation: str
    symbol: str
    size: int
    text_height: str
    """`top` or `bottom`: on which side of its mark the name stands."""


def _references(panel: TradeOffPanel, shown: Extent) -> list[Figure]:
    """Draw start and retain model, with their names beside them."""
    start = _ReferenceMark(
        panel.fine_tuned, "start model", "start model, before unlearning", "square", 11, "bottom"
    )
    retain = _ReferenceMark(
        panel.retain,
        "retain model",
        "retain model, trained without the forget rows",
        "star",
        15,
        "top",
    )
    figures: list[Figure] = []
    for reference in (start, retain):
        row = reference.row
        place = None if row is None else position(row)
        if row is None or place is None:
            continue
        trace = _mark(reference.name, reference.explanation, place, reference.text_height, shown)
        trace["marker"] = {"symbol": reference.symbol, "size": reference.size, "color": INK}
        trace["textfont"] = {"color": INK, "size": 12}
        trace["customdata"] = [[row.epoch, row.run_id]]
        trace["hoverinfo"] = "text"
        trace["hovertext"] = [f"<b>{reference.explanation}</b><br>{_numbers(panel, *place)}"]
        trace["meta"] = meta("reference")
        figures.append(trace)
    return figures


def _best(panel: TradeOffPanel, style: Style, shown: Extent) -> list[Figure]:
    """Draw a ring around each method's best setting. The best of these has its name."""
    top = next((best for best in panel.best if best.ranked), None)
    figures: list[Figure] = []
    for best in panel.best:
        setting = best.setting
        place = None if setting is None else position(setting)
        if setting is None or place is None:
            continue
        colour = style.colour(best.family)
        name = f"<b>{html.escape(best.name, quote=False)}</b>" if best is top else ""
        trace = _mark(name, f"best: {setting.method}", place, "bottom", shown)
        trace["marker"] = {
            "color": colour,
            "symbol": "circle-open",
            "size": 17,
            "line": {"width": 1.5},
        }
        trace["textfont"] = {"color": colour, "size": 12}
        trace["customdata"] = [[setting.epoch, setting.rows[0].run_id]]
        trace["hoverinfo"] = "skip"
        trace["meta"] = meta(
            "best",
            best.family,
            setting.learning_rate,
            slot=style.slots[best.family],
            method=setting.method,
        )
        figures.append(trace)
    return figures


@dataclass(frozen=True)
class _PixelFrame:
    """The frame of a plot, whose places are converted to pixels from its top left corner."""

    width: float
    height: float
    x_range: Sequence[float]
    y_range: Sequence[float]

    def pixels(self, place: Point) -> Point:
        """Convert a place on the axes."""
        left, right = self.x_range
        low, high = self.y_range
        x, y = place
        return self.width * (x - left) / (right - left), self.height * (high - y) / (high - low)


class _NamedMark(NamedTuple):
    """A mark that gets a name."""

    name: str
    colour: str
    place: Point


_NAME_SIZE = 11
"""Font size of the names beside marks."""
_LETTER = 0.56
"""Mean width of a letter, as a fraction of the font size."""
_MOST_VALUES = 8
"""Most swept values that are named. More would cover the plot."""


def name_marks(
    drawn: Figure, panel: TradeOffPanel, style: Style, frame: tuple[float, float]
) -> None:
    """Name each method and both other models beside their marks, in place of a legend.

    A method is named at its best setting. One without a best setting is named at the point that
    keeps most.

    Args:
        drawn: Figure by `draw`, which is changed.
        panel: Its data.
        style: Colours and shapes.
        frame: Width and height of the plot in pixels.
    """
    layout = drawn["layout"]
    plot_frame = _PixelFrame(*frame, layout["xaxis"]["range"], layout["yaxis"]["range"])
    obstacles = _obstacles(drawn, plot_frame)
    for trace in drawn["data"]:
        # These have names already, which are replaced.
        if trace["meta"]["role"] in ("best", "reference"):
            trace["mode"] = "markers"

    named = [*_named_marks(panel, style)]
    names: list[Name] = []
    for mark in named:
        width = _LETTER * _NAME_SIZE * len(mark.name) + 4
        names.append(Name(plot_frame.pixels(mark.place), width, _NAME_SIZE + 3))
    centres = place_names(names, obstacles)
    for mark, name, centre in zip(named, names, centres, strict=True):
        layout["annotations"].append(_name_beside_mark(mark, name.mark, centre))


def _obstacles(drawn: Figure, frame: _PixelFrame) -> Plot:
    """Collect the marks, lines and texts of a figure that names should not cover."""
    marks: list[Point] = []
    lines: list[tuple[Point, Point]] = []
    for trace in drawn["data"]:
        points = [frame.pixels(place) for place in zip(trace["x"], trace["y"], strict=True)]
        if trace["meta"]["role"] != "front":
            marks += points
        if "lines" in trace["mode"]:
            lines += pairwise(points)
    for shape in drawn["layout"]["shapes"]:
        if shape["type"] == "line":
            _, y = frame.pixels((frame.x_range[0], shape["y0"]))
            lines.append(((0.0, y), (frame.width, y)))
    texts = [_box_of_note(note, frame) for note in drawn["layout"]["annotations"]]
    return Plot(frame.width, frame.height, marks, lines, texts)


def _box_of_note(note: Figure, frame: _PixelFrame) -> Box:
    """Estimate the box of a note that the plot has already."""
    x = note["x"] * frame.width
    if note["yref"] == "paper":
        y = (1 - note["y"]) * frame.height
    else:
        _, y = frame.pixels((0.0, note["y"]))
    width = _LETTER * note["font"]["size"] * len(note["text"])
    height = note["font"]["size"] + 4
    left = x - width if note["xanchor"] == "right" else x
    top = y if note["yanchor"] == "top" else y - height
    return Box(left, top, left + width, top + height)


def _name_beside_mark(mark: _NamedMark, mark_pixels: Point, centre: Point) -> Figure:
    """Write a name, with a thin line to its mark.

    Args:
        mark: The mark and its name.
        mark_pixels: Place of the mark in pixels.
        centre: Centre of the name in pixels.
    """
    x, y = mark.place
    from_x, from_y = mark_pixels
    to_x, to_y = centre
    return {
        "name": "method",
        "text": html.escape(mark.name, quote=False),
        "x": x,
        "y": y,
        "ax": to_x - from_x,
        "ay": to_y - from_y,
        "font": {"size": _NAME_SIZE, "color": mark.colour},
        "showarrow": True,
        "arrowhead": 0,
        "arrowwidth": 0.8,
        "arrowcolor": mark.colour,
        "standoff": 8,
        "borderpad": 1,
        "bgcolor": "rgba(255,255,255,0.75)",
    }


def _named_marks(panel: TradeOffPanel, style: Style) -> Iterator[_NamedMark]:
    """Yield the marks that get a name: of methods, swept values, start and retain model."""
    families: set[str] = set()
    for best in panel.best:
        setting = best.setting
        place = None if setting is None else position(setting)
        if setting is not None and place is not None:
            families.add(best.family)
            yield _NamedMark(best.label or setting.method, style.colour(best.family), place)

    # Methods without a best setting are named at the point with the highest utility.
    place_of_family: dict[str, Point] = {}
    for setting in panel.drawn:
        place = position(setting)
        if place is not None and setting.epoch > 0 and setting.family not in families:
            highest = place_of_family.get(setting.family, place)
            place_of_family[setting.family] = max(place, highest)
    for family, place in sorted(place_of_family.items()):
        yield _NamedMark(family, style.colour(family), place)

    yield from _swept_values(panel, style)
    for row, name in ((panel.fine_tuned, "start"), (panel.retain, "retain")):
        place = None if row is None else position(row)
        if place is not None:
            yield _NamedMark(name, INK, place)


def _swept_values(panel: TradeOffPanel, style: Style) -> Iterator[_NamedMark]:
    """Yield the values of methods that ran with several, at the last points of their settings.

    A label such as `npo (beta=0.2)` gives `beta=0.2`. Best settings are left out, because their
    names have their values.
    """
    named = {best.setting.method for best in panel.best if best.setting is not None}
    # Place of the first trajectory of each label, by method.
    labels_of_family: dict[str, dict[str, Point]] = {}
    for trajectory in panel.trajectories:
        place = position(trajectory.points[-1])
        if place is not None:
            places = labels_of_family.setdefault(trajectory.family, {})
            places.setdefault(trajectory.method, place)

    values: list[_NamedMark] = []
    for family, places in labels_of_family.items():
        for label, place in places.items():
            value = label.partition(" (")[2].removesuffix(")")
            if len(places) > 1 and value and label not in named:
                values.append(_NamedMark(value, style.colour(family), place))
    if len(values) <= _MOST_VALUES:
        yield from values


def _mark(text: str, name: str, place: Point, text_height: str, shown: Extent) -> Figure:
    """Draw one point, with its text on the side that is inside the frame.

    Args:
        text: Text beside the point; may be empty.
        name: Name of the trace.
        place: Utility and forgetting of the point.
        text_height: `top` or `bottom`: whether the text stands above or below the point.
        shown: Ranges of both axes.
    """
    (left, right), _ = shown
    side = "left" if place[0] > left + 0.6 * (right - left) else "right"
    return {
        **_points([place]),
        "mode": "markers+text" if text else "markers",
        "name": html.escape(name),
        # A star is wider than Plotly's distance of a text from its marker.
        "text": [f"\u00a0{text}\u00a0"],
        "textposition": f"{text_height} {side}",
        "cliponaxis": False,
    }


def _numbers(panel: TradeOffPanel, kept: float, forgotten: float) -> str:
    """Write the two numbers of a point, for its hover text."""
    lines: list[str] = []
    for metric, value in ((panel.headline.kept, kept), (panel.headline.forgotten, forgotten)):
        lines.append(f"{html.escape(metric.label)} {signed(value, metric.digits)}")
    return "<br>".join(lines)


def _hover(setting: Setting, panel: TradeOffPanel) -> str:
    """Write the hover text: means with intervals over seeds, and caveats."""
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    rate = rate_text(setting.learning_rate)
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate}  {setting.when}",
        _mean(setting, kept),
        _mean(setting, forgotten),
    ]
    interval = setting.interval(kept.column)
    if len(setting.rows) == 1:
        lines.append(f"seed {setting.rows[0].seed}")
    elif interval is not None:
        lines.append(f"mean of {len(setting.rows)} seeds; in brackets: {interval.name}")
    if panel.has_collapsed(setting):
        good = "high" if forgotten.better == "higher" else "low"
        name = html.escape(forgotten.name)
        lines.append(f"<i>collapsed: {good} {name} would be no success here</i>")
    return "<br>".join(lines)


def _mean(setting: Setting, metric: HeadlineMetric) -> str:
    """Write a mean and, in brackets, its interval."""
    mean = signed(setting.metrics[metric.column], metric.digits)
    text = f"{html.escape(metric.label)} {mean}"
    interval = setting.interval(metric.column)
    if interval is not None:
        text += f" {interval_text(interval, metric.digits)}"
    return text
