"""Lines, points, error bars and layouts of figures, as plain values.

Figures are dictionaries and not Plotly's own classes. These check each value, which would take most
of the time for a large page.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from unlearnbench.analysis.settings import Setting
from unlearnbench.stats.t_interval import Interval

from ..formatting import short
from .palette import INK, MUTED, Style, faded, meta

Figure = dict[str, Any]
"""A figure (`data` and `layout`) or a part of one, in the form that Plotly reads."""
AXIS = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
SHARE_RANGE = [-0.02, 1.04]
"""Range of the axis of a score from 0 to 1, with room for marks at its ends."""
PALE = 0.3
"""Opacity of the lines of settings that are not a best one."""
_FENCE = 3.0
"""Interquartile ranges between a quartile and the values that count as outliers (Tukey 1977)."""
_DECADES = 2.0
"""Powers of ten that values must span for a logarithmic axis."""


def trace(
    x: Iterable[Any], y: Iterable[float | None], name: str, hover: str, **more: Any
) -> Figure:
    """Make a line or points.

    Args:
        x: Places on the horizontal axis.
        y: Values, which are rounded. None leaves a gap.
        name: Name of the line, which is escaped.
        hover: Plotly's template of the hover text.
        more: Further keys of the trace.
    """
    return {
        "type": "scatter",
        "x": [*x],
        "y": [*map(short, y)],
        "name": escape(name),
        "hovertemplate": f"{hover}<extra></extra>",
        "showlegend": False,
        **more,
    }


def line_style(
    style: Style, family: str, rate: float | None, *, width: float, alpha: float, **more: Any
) -> Figure:
    """Return colour, dash and marks of a method's line, and the metadata by which it is filtered.

    Args:
        style: Colours, dashes and shapes.
        family: Method of the line.
        rate: Learning rate of the line.
        width: Pixels.
        alpha: Opacity from 0 to 1.
        more: Further metadata. `method` is the label of a setting, which may change the shape.
    """
    colour = faded(style.colour(family), alpha)
    return {
        "mode": "lines+markers",
        "line": {"color": colour, "width": width, "dash": style.dashes[rate]},
        "marker": {
            "symbol": style.shape(family, str(more.get("method", ""))),
            "size": 5,
            "color": colour,
            "maxdisplayed": 8,
        },
        "meta": meta("curve", family, rate, slot=style.slots[family], alpha=alpha, **more),
    }


def emphasis(
    style: Style, family: str, rate: float | None, *, is_best: bool | None, **more: Any
) -> Figure:
    """Return the style of a line among many: strong for a best setting, pale for all others.

    Args:
        style: Colours, dashes and shapes.
        family: Method of the line.
        rate: Learning rate of the line.
        is_best: Whether it is the line of a best setting. None if no method has one: all lines are
            alike then.
        more: Further metadata.
    """
    if is_best is None:
        return line_style(style, family, rate, width=1.6, alpha=0.85, **more)
    if is_best:
        return line_style(style, family, rate, width=2.4, alpha=0.95, best=True, **more)
    pale = line_style(style, family, rate, width=1.0, alpha=PALE, best=False, **more)
    pale["marker"] = {**pale["marker"], "opacity": PALE}
    return pale


def seeds_of(setting: Setting) -> str:
    """Return the end of a mean's hover text: `, mean of 3 seeds`; empty for a single run."""
    count = len(setting.rows)
    return f", mean of {count} seeds" if count > 1 else ""


def error_bars(intervals: Sequence[Interval | None], **style: Any) -> Figure | None:
    """Make the error bars of a trace.

    Args:
        intervals: An interval for each point. A point without one has no bar.
        style: Further keys, such as `color`.

    Returns:
        None if no point has an interval.
    """
    if all(interval is None for interval in intervals):
        return None
    above: list[float | None] = []
    below: list[float | None] = []
    for interval in intervals:
        if interval is None:
            above.append(0.0)
            below.append(0.0)
        else:
            above.append(short(interval.high - interval.mean, 6))
            below.append(short(interval.mean - interval.low, 6))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **style}


def small_layout(title: str, x_title: str, **x_axis: Any) -> Figure:
    """Make the layout of a small figure.

    Args:
        title: Title above the figure.
        x_title: Title of the horizontal axis.
        x_axis: Further keys of the horizontal axis.
    """
    return {
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 13, "color": INK}},
        "xaxis": {**AXIS, **x_axis, "title": {"text": x_title}},
        "yaxis": {**AXIS},
        "margin": {"l": 44, "r": 8, "t": 34, "b": 38},
        "height": 250,
        "hovermode": "closest",
    }


def value_axis(
    values: Iterable[float | None], *, log: bool = False, levels: Sequence[float] = ()
) -> Figure:
    """Return type and first range of an axis, without outliers. A double click shows all values.

    Args:
        values: Values on the axis.
        log: Whether the axis may be logarithmic. It is if all values are positive and span more
            than two powers of ten.
        levels: Further values that have to be inside. A logarithmic axis ignores them.

    Returns:
        An empty dictionary if no value is finite.
    """
    finite = np.array([value for value in values if value is not None and np.isfinite(value)])
    if not finite.size:
        return {}
    lowest, highest = finite.min(), finite.max()
    is_log = log and bool(lowest > 0) and highest > 10**_DECADES * lowest
    # Plotly states the range of a logarithmic axis in powers of ten.
    places = np.log10(finite) if is_log else finite
    first_quartile, third_quartile = np.quantile(places, [0.25, 0.75])
    # If half of the values are equal, no distance from them makes an outlier.
    reach = _FENCE * (third_quartile - first_quartile) or np.inf
    is_inside = (places >= first_quartile - reach) & (places <= third_quartile + reach)
    inside: list[float] = places[is_inside].tolist()
    if not is_log:
        inside += levels
    low, high = min(inside), max(inside)
    pad = 0.05 * (high - low) or 0.05 * (abs(high) or 1.0)
    return {"type": "log" if is_log else "linear", "range": [low - pad, high + pad]}


def level(name: str, height: float, dash: str, **more: Any) -> Figure:
    """Make a horizontal line through a figure."""
    return {
        "type": "line",
        "name": name,
        "layer": "below",
        "line": {"color": MUTED, "width": 1, "dash": dash},
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": height,
        "y1": height,
        **more,
    }


def note(name: str, text: str, x: float, y: float, **more: str) -> Figure:
    """Make a small note.

    Args:
        name: Name for tests and for the page's scripts.
        text: What the note says.
        x: Place from 0, the left end of the plot, to 1.
        y: Place from 0, the lower end of the plot, to 1.
        more: Further keys, which may replace the default ones: with `yref="y"`, `y` is a value of
            the vertical axis.
    """
    return {
        "name": name,
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": MUTED},
        "xref": "paper",
        "yref": "paper",
        "x": x,
        "y": y,
        "xanchor": "left",
        "yanchor": "bottom",
        **more,
    }
