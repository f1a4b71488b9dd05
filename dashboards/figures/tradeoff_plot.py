"""The trade-off panels, for the page, a notebook and a paper.

Every trace has its method, rate and role in `meta`, by which the page filters and recolours it.
Colours are those of the light page; the page replaces them in dark mode.
"""

import html
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from unlearnbench.analysis.settings import Setting, panel_label
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.stats.t_interval import Interval

from ..formatting import interval_text, rate_text, signed
from .mark_names import Box, Name, Plot, place_names
from .marks import AXIS, Figure, error_bars, level, note
from .palette import INK, MUTED, Style, faded, meta
from .tradeoff_data import TradeOffPanel, Trajectory, position

_PAD = 0.06
Extent = tuple[tuple[float, float], tuple[float, float]]
"""(kept from, to), (forgotten from, to)."""


def draw(panel: TradeOffPanel, style: Style, height: int = 400) -> Figure:
    """Draw one panel; the methods' names are a legend's."""
    shown = extent(panel)
    traces = [_trajectory(panel, trajectory, style) for trajectory in panel.trajectories]
    if len(panel.front) > 1:
        traces.append(_front(panel))
    traces += [*_best(panel, style, shown), *_references(panel, shown)]
    return {"data": traces, "layout": _layout(panel, *shown, height)}


def extent(panel: TradeOffPanel) -> Extent:
    """Compute the first axis ranges of a panel."""
    two = panel.headline.kept.column, panel.headline.forgotten.column
    shown = [
        xy
        for item in (*panel.drawn, panel.fine_tuned, panel.retain)
        if item is not None and (xy := position(item)) is not None
    ]
    for setting in panel.drawn:
        ends = [setting.interval(name) for name in two]
        if not panel.has_collapsed(setting) and all(ends):
            shown += [(x, y) for x, y in zip(*((i.low, i.high) for i in ends if i), strict=True)]
    if panel.low is not None:
        shown = [(x, max(y, panel.low)) for x, y in shown]
    shown = shown or [(0.0, 0.0), (1.0, 1.0)]
    xs, ys = [x for x, _ in shown], [y for _, y in shown]
    if panel.significance is not None:
        ys += [0.0, 2 * panel.significance]
    width, height = max(xs) - min(xs) or 0.1, max(ys) - min(ys) or 0.1
    return (
        (min(xs) - _PAD * width, max(xs) + 0.1 * width),
        (min(ys) - _PAD * height, max(ys) + 2 * _PAD * height),
    )


def _layout(
    panel: TradeOffPanel, x_range: tuple[float, float], y_range: tuple[float, float], height: int
) -> Figure:
    """Make the layout; shapes and notes have names, for tests and for the page."""
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    shapes: list[Figure] = []
    notes = [note("better", "better ↗", 1, 1, xanchor="right")]
    if forgotten.better == "lower":
        notes = [note("better", "better ↘", 1, 0, xanchor="right")]
    if panel.significance is not None and forgotten.test is not None:
        shapes.append(level("significance", panel.significance, "dot"))
        text = f"p = {forgotten.test.level:g}"
        notes.append(note("significance", text, 0, panel.significance, yref="y", yanchor="top"))
    if panel.floor is not None:
        shapes.append(level("floor", panel.floor, "dash"))
        if panel.floor > y_range[0]:
            notes.append(note("floor", "lowest that n allows", 0, panel.floor, yref="y"))
    if panel.collapse_below is not None:
        ends = {"x0": min(0.0, x_range[0]), "x1": panel.collapse_below, "y0": 0, "y1": 1}
        fill = {"line": {"width": 0}, "fillcolor": faded(MUTED, 0.09), "yref": "paper"}
        shapes.append({"type": "rect", "name": "collapse", "layer": "below", **fill, **ends})
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


def _trajectory(panel: TradeOffPanel, trajectory: Trajectory, style: Style) -> Figure:
    family, rate, points = trajectory.family, trajectory.learning_rate, trajectory.points
    colour = style.colour(family)
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    # The line starts at the start model, which has its own mark: an invisible first point.
    lead = [] if panel.origin is None or points[0].epoch == 0 else [panel.origin]
    positions = [position(point) for point in points]
    xy = lead + [at for at in positions if at is not None]
    on_front = any(point in panel.front for point in points)
    leading = on_front or any(best.setting in points for best in panel.best)
    alpha = 0.8 if on_front else 0.3
    bars: dict[str, Any] = {}
    for name, metric in (("error_x", kept), ("error_y", forgotten)):
        intervals: list[Interval | None] = [None] * len(lead)
        for point in points:
            # A collapsed model's interval says nothing, and its bars would cover the working ones.
            has_bars = leading and not panel.has_collapsed(point)
            intervals.append(point.interval(metric.column) if has_bars else None)
        bars[name] = error_bars(intervals, color=faded(colour, 0.45), width=0, thickness=1.2)
    last = points[-1]
    return {
        **_points(xy),
        # Others than the leading settings are dots; the page can join them.
        "mode": "lines+markers" if leading else "markers",
        "name": html.escape(trajectory.method),
        "line": {"color": faded(colour, alpha), "width": 1.6, "dash": style.dashes[rate]},
        "marker": {  # beaten points are pale, the last epoch is large
            "color": colour,
            "symbol": style.shape(family, trajectory.method),
            "opacity": [0.0] * len(lead) + [1.0 if s in panel.front else 0.4 for s in points],
            "size": [1.0] * len(lead) + [10.5 if s is last else 6.5 for s in points],
        },
        **bars,
        "hoverinfo": "text",
        "hovertext": [""] * len(lead) + [_hover(s, panel) for s in points],
        "customdata": [[0, ""]] * len(lead) + [[s.epoch, s.rows[0].run_id] for s in points],
        "meta": meta(
            *("trajectory", family, rate),
            method=trajectory.method,
            slot=style.slots[family],
            alpha=alpha,
            leading=leading,
        ),
    }


def _points(xy: Sequence[tuple[float, float]]) -> Figure:
    return {
        "type": "scatter",
        "x": [x for x, _ in xy],
        "y": [y for _, y in xy],
        "showlegend": False,
    }


def _front(panel: TradeOffPanel) -> Figure:
    xy = [at for item in panel.front if (at := position(item)) is not None]
    # The page hides the front while a filter hides one of its settings.
    members = [[item.family, rate_text(item.learning_rate), item.epoch] for item in panel.front]
    return {
        **_points(xy),
        "mode": "lines",
        "name": "Pareto front",
        # A staircase: points of the front are not interpolated.
        "line": {"color": faded(MUTED, 0.55), "width": 1.5, "shape": "vh"},
        "hoverinfo": "skip",
        "meta": meta("front", members=members),
    }


def _references(panel: TradeOffPanel, shown: Extent) -> list[Figure]:
    """Draw start and retain model, with their names beside them."""
    figures: list[Figure] = []
    for row, name, symbol, size, title in (
        (panel.fine_tuned, "start model", "square", 11, "start model, before unlearning"),
        (panel.retain, "retain model", "star", 15, "retain model, trained without the forget rows"),
    ):
        if row is None or (xy := position(row)) is None:
            continue
        figures.append(
            _mark(name, title, xy, "top" if symbol == "star" else "bottom", shown)
            | {
                "marker": {"symbol": symbol, "size": size, "color": INK},
                "textfont": {"color": INK, "size": 12},
                "customdata": [[row.epoch, row.run_id]],
                "hoverinfo": "text",
                "hovertext": [f"<b>{title}</b><br>{_numbers(panel, *xy)}"],
                "meta": meta("reference"),
            }
        )
    return figures


def _best(panel: TradeOffPanel, style: Style, shown: Extent) -> list[Figure]:
    """Draw a ring around each method's best setting; the best of these has its name."""
    placed = [
        (item, item.setting, xy)
        for item in panel.best
        if item.setting is not None and (xy := position(item.setting)) is not None
    ]
    top = next((item for item in panel.best if item.ranked), None)
    figures: list[Figure] = []
    for best, setting, xy in placed:
        family = best.family
        colour = style.colour(family)
        text = f"<b>{html.escape(best.name, quote=False)}</b>" if best is top else ""
        figures.append(
            _mark(text, f"best: {setting.method}", xy, "bottom", shown)
            | {
                "marker": {"color": colour, "symbol": "circle-open", "size": 17}
                | {"line": {"width": 1.5}},
                "textfont": {"color": colour, "size": 12},
                "customdata": [[setting.epoch, setting.rows[0].run_id]],
                "hoverinfo": "skip",
                "meta": meta(
                    *("best", family, setting.learning_rate),
                    slot=style.slots[family],
                    method=setting.method,
                ),
            }
        )
    return figures


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
    width, height = frame
    layout = drawn["layout"]
    (left, right), (low, high) = layout["xaxis"]["range"], layout["yaxis"]["range"]

    def pixels(xy: tuple[float, float]) -> tuple[float, float]:
        x, y = xy
        return width * (x - left) / (right - left), height * (high - y) / (high - low)

    named = [*_named_marks(panel, style)]
    marks: list[tuple[float, float]] = []
    lines: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for trace in drawn["data"]:
        points = [pixels(xy) for xy in zip(trace["x"], trace["y"], strict=True)]
        if trace["meta"]["role"] != "front":
            marks += points
        if "lines" in trace["mode"]:
            lines += pairwise(points)
        if trace["meta"]["role"] in ("best", "reference"):
            trace["mode"] = "markers"
    for shape in layout["shapes"]:
        if shape["type"] == "line":
            (_, y) = pixels((left, shape["y0"]))
            lines.append(((0.0, y), (width, y)))
    size = _NAME_SIZE
    names = [Name(pixels(xy), _LETTER * size * len(text) + 4, size + 3) for text, _, xy in named]
    placed = place_names(names, Plot(width, height, marks, lines, _standing(layout, frame, pixels)))
    for (text, colour, (x, y)), name, (to_x, to_y) in zip(named, names, placed, strict=True):
        from_x, from_y = name.mark
        layout["annotations"].append(
            {
                "name": "method",
                "text": html.escape(text, quote=False),
                "x": x,
                "y": y,
                "ax": to_x - from_x,
                "ay": to_y - from_y,
                "font": {"size": size, "color": colour},
                "showarrow": True,
                "arrowhead": 0,
                "arrowwidth": 0.8,
                "arrowcolor": colour,
                "standoff": 8,
                "borderpad": 1,
                "bgcolor": "rgba(255,255,255,0.75)",
            }
        )


_NAME_SIZE = 11
_LETTER = 0.56
"""Mean width of a letter by the size of the font."""


def _named_marks(
    panel: TradeOffPanel, style: Style
) -> Iterator[tuple[str, str, tuple[float, float]]]:
    """Yield the names, colours and places of the marks that have a name."""
    families: set[str] = set()
    for best in panel.best:
        at = None if best.setting is None else position(best.setting)
        if best.setting is not None and at is not None:
            families.add(best.family)
            name = best.label or best.setting.method
            yield name, style.colour(best.family), at
    keeping: dict[str, tuple[float, float]] = {}
    for setting in panel.drawn:
        at = position(setting)
        if at is not None and setting.epoch > 0 and setting.family not in families:
            keeping[setting.family] = max(at, keeping.get(setting.family, at))
    for family, at in sorted(keeping.items()):
        yield family, style.colour(family), at
    yield from _swept_values(panel, style)
    for row, name in ((panel.fine_tuned, "start"), (panel.retain, "retain")):
        at = None if row is None else position(row)
        if at is not None:
            yield name, INK, at


_MOST_VALUES = 8
"""Most swept values that are named; more would cover the plot."""


def _swept_values(
    panel: TradeOffPanel, style: Style
) -> Iterator[tuple[str, str, tuple[float, float]]]:
    """Yield the values of methods that ran with several, at the last points of their settings.

    Best settings are left out, because their names have their values.
    """
    named = {best.setting.method for best in panel.best if best.setting is not None}
    labels_of_family: dict[str, dict[str, tuple[float, float]]] = {}
    for trajectory in panel.trajectories:
        at = position(trajectory.points[-1])
        if at is not None:
            labels = labels_of_family.setdefault(trajectory.family, {})
            labels.setdefault(trajectory.method, at)
    values: list[tuple[str, str, tuple[float, float]]] = []
    for family, labels in labels_of_family.items():
        for label, at in labels.items():
            value = label.partition(" (")[2].removesuffix(")")
            if len(labels) > 1 and value and label not in named:
                values.append((value, style.colour(family), at))
    if len(values) <= _MOST_VALUES:
        yield from values


def _standing(
    layout: Figure,
    frame: tuple[float, float],
    pixels: Callable[[tuple[float, float]], tuple[float, float]],
) -> list[Box]:
    """Return the boxes of the notes that stand in the plot already."""
    width, height = frame
    boxes: list[Box] = []
    for item in layout["annotations"]:
        x = item["x"] * width
        y = (1 - item["y"]) * height if item["yref"] == "paper" else pixels((0.0, item["y"]))[1]
        wide = _LETTER * item["font"]["size"] * len(item["text"])
        tall = item["font"]["size"] + 4
        begin = x - wide if item["xanchor"] == "right" else x
        above = y if item["yanchor"] == "top" else y - tall
        boxes.append(Box(begin, above, begin + wide, above + tall))
    return boxes


def _mark(text: str, name: str, xy: tuple[float, float], height: str, shown: Extent) -> Figure:
    """Draw one point, with its text on the side of it that is inside the frame."""
    (left, right), _ = shown
    side = "left" if xy[0] > left + 0.6 * (right - left) else "right"
    return {
        **_points([xy]),
        "mode": "markers+text" if text else "markers",
        "name": html.escape(name),
        # A star is wider than Plotly's distance of a text from its marker.
        "text": [f"\u00a0{text}\u00a0"],
        "textposition": f"{height} {side}",
        "cliponaxis": False,
    }


def _numbers(panel: TradeOffPanel, utility: float, quality: float) -> str:
    """Write the two numbers of a point, for its hover text."""
    both = ((panel.headline.kept, utility), (panel.headline.forgotten, quality))
    return "<br>".join(f"{html.escape(m.label)} {signed(v, m.digits)}" for m, v in both)


def _hover(setting: Setting, panel: TradeOffPanel) -> str:
    """Write the hover text: means with intervals over seeds, and caveats."""
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate_text(setting.learning_rate)}"
        f"  {setting.when}",
        *(_mean(setting, metric) for metric in (kept, forgotten)),
    ]
    if len(setting.rows) == 1:
        lines.append(f"seed {setting.rows[0].seed}")
    elif (interval := setting.interval(kept.column)) is not None:
        lines.append(f"mean of {len(setting.rows)} seeds; in brackets: {interval.name}")
    if panel.has_collapsed(setting):
        good = "high" if forgotten.better == "higher" else "low"
        name = html.escape(forgotten.name)
        lines.append(f"<i>collapsed: {good} {name} would be no success here</i>")
    return "<br>".join(lines)


def _mean(setting: Setting, metric: HeadlineMetric) -> str:
    """Write a mean and, in brackets, its interval."""
    interval = setting.interval(metric.column)
    ends = "" if interval is None else f" {interval_text(interval, metric.digits)}"
    mean = signed(setting.metrics[metric.column], metric.digits)
    return f"{html.escape(metric.label)} {mean}{ends}"
