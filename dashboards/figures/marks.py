"""Lines, points, error bars and layouts of figures, as plain values.

Plotly's own classes check each value, which takes most of a large page's time.
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
"""`data` and `layout` of Plotly."""
AXIS = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
SHARE_RANGE = [-0.02, 1.04]
"""Range of an axis from 0 to 1."""
PALE = 0.3
"""Opacity of lines that are no best settings."""
_FENCE = 3.0
"""Distance from the quartiles, in interquartile ranges, beyond which a value is an outlier (Tukey
1977)."""
_DECADES = 2.0
"""Span of positive values above which an axis is logarithmic."""


def trace(
    x: Iterable[Any], y: Iterable[float | None], name: str, hover: str, **more: Any
) -> Figure:
    """Make a line or points, with rounded numbers."""
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
    """The colour, dash and marks of a method's line, and the metadata by which it is filtered."""
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
    """The style of a line among many: strong for a best setting, pale for all others.

    Args:
        style: Colours, dashes and shapes.
        family: Method of the line.
        rate: Learning rate of the line.
        is_best: None if no method has a best setting. All lines are then alike.
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
    """What a mark adds to its number where that is a mean."""
    return f", mean of {len(setting.rows)} seeds" if len(setting.rows) > 1 else ""


def error_bars(intervals: Sequence[Interval | None], **style: Any) -> Figure | None:
    """Make error bars of intervals; None if there are none."""
    if not any(intervals):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [short(i.high - i.mean, 6) if i else 0.0 for i in intervals],
        "arrayminus": [short(i.mean - i.low, 6) if i else 0.0 for i in intervals],
        **style,
    }


def small_layout(title: str, x_title: str, **x_axis: Any) -> Figure:
    """Make the layout of a small figure."""
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
    """The type and first range of an axis, without outliers; a double click shows all.

    log     True: logarithmic where every value is positive and they span two decades
    levels  values that are inside
    """
    result = np.array([v for v in values if v is not None and np.isfinite(v)])
    if not result.size:
        return {}
    log = log and bool(result.min() > 0) and result.max() > 10**_DECADES * result.min()
    result = np.log10(result) if log else result
    first, third = np.quantile(result, [0.25, 0.75])
    reach = _FENCE * (third - first) or np.inf
    inside = [*result[(result >= first - reach) & (result <= third + reach)].tolist()]
    inside += [] if log else levels
    pad = 0.05 * (max(inside) - min(inside)) or 0.05 * (abs(max(inside)) or 1.0)
    ends = [min(inside) - pad, max(inside) + pad]
    return {"type": "log" if log else "linear", "range": ends}


def level(name: str, at: float, dash: str, **more: Any) -> Figure:
    """Make a horizontal line through a figure."""
    line = {"color": MUTED, "width": 1, "dash": dash}
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}
    return {"type": "line", "name": name, "layer": "below", "line": line, **ends, **more}


def note(name: str, text: str, x: float, y: float, **more: str) -> Figure:
    """Make a small note at a place of the figure."""
    location = {"xref": "paper", "yref": "paper", "x": x, "y": y}
    align = {"xanchor": "left", "yanchor": "bottom"}
    font = {"size": 11, "color": MUTED}
    return {
        "name": name,
        "text": text,
        "showarrow": False,
        "font": font,
        **location,
        **align,
        **more,
    }
