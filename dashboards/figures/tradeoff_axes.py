"""Axes, levels and regions of a trade-off panel."""

from __future__ import annotations

from typing import Any

from unlearnbench.analysis.best_settings import Setting, panel_label

from .palette import faded
from .tradeoff_data import Panel, position
from .tradeoff_points import drawn_interval

INK = "#1c2024"
MUTED = "#5d6670"
_PAD = 0.06

Extent = tuple[tuple[float, float], tuple[float, float]]
"""(kept from, to), (forgotten from, to)."""


def extent(panel: Panel) -> Extent:
    """Compute the initial axis ranges of a panel."""
    shown = [xy for t in panel.trajectories for s in t.points if (xy := position(s)) is not None]
    shown += [xy for r in (panel.fine_tuned, panel.retain) if r and (xy := position(r))]
    two = panel.headline.kept.column, panel.headline.forgotten.column
    points = [s for t in panel.trajectories for s in t.points if not panel.has_collapsed(s)]
    shown += [corner for s in points for corner in _corners(s, *two)]
    if panel.low is not None:
        shown = [(x, max(y, panel.low)) for x, y in shown] or [(0.0, panel.low)]
    shown = shown or [(0.0, 0.0), (1.0, 1.0)]
    width = max(x for x, _ in shown) - min(x for x, _ in shown) or 0.1
    left, right = min(x for x, _ in shown) - _PAD * width, max(x for x, _ in shown) + 0.1 * width
    ends = [y for _, y in shown]
    if panel.significance is not None:
        ends += [0.0, 2 * panel.significance]
    top, bottom = max(ends), min(ends)
    height = top - bottom or 0.1
    return (left, right), (bottom - _PAD * height, top + 1.5 * _PAD * height)


def _corners(setting: Setting, *columns: str) -> list[tuple[float, float]]:
    """List the ends of a point's error bars."""
    kept, forgotten = (drawn_interval(setting, name) for name in columns)
    if kept is None or forgotten is None:
        return []
    return [(kept.low, forgotten.low), (kept.high, forgotten.high)]


def layout(
    panel: Panel, x_range: tuple[float, float], y_range: tuple[float, float], height: int
) -> Any:
    """Make Plotly's layout of a panel; shapes and notes have names, for tests and for the page."""
    axis: dict[str, Any] = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    kept, forgotten, level = panel.headline.kept, panel.headline.forgotten, panel.significance
    shapes: list[dict[str, Any]] = []
    notes = [_note("better", "better ↗", 1, 1, xanchor="right")]
    if forgotten.better == "lower":
        notes = [_note("better", "better ↘", 1, 0, xanchor="right")]
    if level is not None and forgotten.test is not None:
        shapes.append(_level("significance", level, "dot"))
        text = f"p = {forgotten.test.level:g}"
        notes.insert(0, _note("significance", text, 0, level, yref="y", yanchor="top"))
    if panel.floor is not None:
        shapes.append(_level("floor", panel.floor, "dash"))
        if panel.floor > y_range[0]:
            notes.append(_note("floor", "lowest that n allows", 0, panel.floor, yref="y"))
    if panel.collapse_below is not None:
        shapes.append(_collapse(panel.collapse_below, min(0.0, x_range[0])))
        if panel.collapse_below > x_range[0]:
            notes.append(_note("collapse", "collapsed", 0.01, 0.01))
    return {
        "xaxis": axis | {"title": {"text": kept.label, "standoff": 6}, "range": [*x_range]},
        "yaxis": axis | {"title": {"text": forgotten.label, "standoff": 4}, "range": [*y_range]},
        "shapes": shapes,
        "annotations": notes,
        "margin": {"l": 48, "r": 14, "t": 22, "b": 40},
        "height": height,
        "hovermode": "closest",
        "meta": {"title": panel_label(panel.model, panel.forget_fraction)},
    }


def _level(name: str, at: float, dash: str) -> dict[str, Any]:
    line = {"color": MUTED, "width": 1, "dash": dash}
    place = {"xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
    return {"type": "line", "name": name, "layer": "below", "line": line, **place}


def _collapse(below: float, left: float) -> dict[str, Any]:
    """Shade everything left of `below`, at any zoom."""
    place = {"yref": "paper", "x0": left - 1, "x1": below, "y0": 0, "y1": 1}
    style = {"line": {"width": 0}, "fillcolor": faded(MUTED, 0.09)}
    return {"type": "rect", "name": "collapse", "layer": "below", **style, **place}


def _note(name: str, text: str, x: float, y: float, **more: str) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": x, "y": y}
    align = {"xanchor": "left", "yanchor": "bottom"}
    font = {"size": 11, "color": MUTED}
    return {"name": name, "text": text, "showarrow": False, "font": font, **place, **align, **more}
