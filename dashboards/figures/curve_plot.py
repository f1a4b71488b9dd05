"""Forgetting curves: every metric by epoch, and the layout of small figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from itertools import groupby
from typing import Any

from unlearnbench.analysis.best_settings import Setting, average_seeds
from unlearnbench.results.table import TableRow

from ..formatting import rate_text, short, signed
from ..metric_columns import PageColumns
from .axis_range import axis_range
from .palette import faded
from .tradeoff_axes import INK, MUTED
from .tradeoff_plot import Style, meta
from .tradeoff_points import bars

Groups = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Figures shown together: kind of group → group → column → title."""


def groups(columns: PageColumns) -> Groups:
    """Group the columns that have a number: summaries, and metrics by set, by metric and by set."""
    by_metric = {columns.label(n): by for n, by in columns.measures(columns.all).items()}
    of_sets = {name for by_set in by_metric.values() for name in by_set.values()}
    others = [one for one in columns.further if one.name not in of_sets]
    summaries = {
        "Summary": [one for one in columns.compared if one.name not in of_sets],
        "Scores": [one for one in others if one.name not in columns.attacks],
        "Attacks": [one for one in others if one.name in columns.attacks],
    }
    titles = {name: title[:1].upper() + title[1:] for name, title in columns.sets.items()}
    by_set = {
        title: {by[name]: label for label, by in by_metric.items() if name in by}
        for name, title in titles.items()
    }
    found: Groups = {
        "": {kind: {one.name: one.label for one in several} for kind, several in summaries.items()},
        "by metric": {
            label: {column: titles[name] for name, column in by.items()}
            for label, by in by_metric.items()
        },
        "by set": by_set,
    }
    return {
        kind: {group: names for group, names in named.items() if names}
        for kind, named in found.items()
    }


def curves(
    rows: Sequence[TableRow],
    metric: str,
    style: Style,
    title: str = "",
    settings: Sequence[Setting] | None = None,
) -> dict[str, Any]:
    """Draw one metric by epoch on one model and fraction: a line per setting, averaged over seeds.

    A figure as plain values: Plotly's own classes check each, which takes most of a large page's
    time.

    settings  `average_seeds` of the rows, if already computed

    Lines start at the fine-tuned model; the retain model's value is the dotted level. With several
    seeds, bars are t intervals.
    """
    of = rows[0].schema.column(metric)
    shares = of.set and of.bounds == (0.0, 1.0)  # which all have the same scale
    start = _value(rows, "fine-tuned", metric)
    goal = _value(rows, "retain", metric)
    settings = average_seeds(rows) if settings is None else settings
    by_setting = groupby(settings, key=lambda s: (s.method, s.learning_rate))
    lines = [_curve(tuple(group), metric, start, style) for _, group in by_setting]
    layout = small_layout(title, "epoch", dtick=1)
    if shares:
        layout["yaxis"]["range"] = [-0.02, 1.04]
    else:
        levels = [v for v in (start, goal) if v is not None]
        set_axis_range(layout, lines, log=False, levels=levels)
    if goal is not None:
        layout |= _level(goal, *layout["yaxis"].get("range", (goal, goal)))
    return {"data": lines, "layout": layout}


def _value(rows: Sequence[TableRow], kind: str, metric: str) -> float | None:
    return next((r.metrics[metric] for r in rows if r.kind == kind), None)


def _level(at: float, low: float, high: float) -> dict[str, Any]:
    """The retain model's line and its label, as part of a layout."""
    line = {"color": MUTED, "width": 1, "dash": "dot"}
    ends = {"xref": "x domain", "x0": 0, "x1": 1, "yref": "y", "y0": at, "y1": at}
    place = {"xref": "paper", "x": 1, "xanchor": "right", "yref": "y", "y": at}
    place["yanchor"] = "top" if at > (low + high) / 2 else "bottom"  # inside the frame
    text = {"text": f"retain {signed(at, 2)}", "font": {"size": 11, "color": MUTED}}
    return {
        "shapes": [{"type": "line", "name": "retain", "line": line, **ends}],
        "annotations": [{"name": "retain", "showarrow": False, **text, **place}],
    }


def _curve(
    settings: Sequence[Setting], metric: str, start: float | None, style: Style
) -> dict[str, Any]:
    first = settings[0]
    lead = [] if start is None or first.epoch == 0 else [(0, start)]
    points = lead + [(s.epoch, s.metrics[metric]) for s in settings]
    colour = style.colour(first.family)
    error = bars(settings, metric, len(lead), colour, digits=2, width=2, thickness=1)
    return trace(
        [x for x, _ in points],
        [y for _, y in points],
        f"{first.method}, learning rate {rate_text(first.learning_rate)}",
        f"%{{fullData.name}}<br>epoch %{{x}}: %{{y:.4g}}{_seeds(settings)}",
        mode="lines+markers" if len(points) < 3 else "lines",
        **({} if error is None else {"error_y": error}),
        **line_style(
            style, first.family, first.learning_rate, width=1.6, alpha=0.85, method=first.method
        ),
    )


def trace(
    x: Iterable[Any], y: Iterable[float | None], name: str, hover: str, **more: Any
) -> dict[str, Any]:
    """Make a line or points of a small figure, with rounded numbers."""
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
) -> dict[str, Any]:
    """The colour and dash of a method's line, and the metadata by which the page filters it."""
    colour = faded(style.colour(family), alpha)
    return {
        "line": {"color": colour, "width": width, "dash": style.dashes[rate]},
        "meta": meta("curve", family, rate, slot=style.slots[family], alpha=alpha, **more),
    }


def _seeds(settings: Sequence[Setting]) -> str:
    counts = {len(s.rows) for s in settings}
    return f", mean of {max(counts)} seeds" if max(counts) > 1 else ""


def set_axis_range(
    layout: dict[str, Any],
    lines: Sequence[Mapping[str, Any]],
    log: bool | None = None,
    levels: Sequence[float] = (),
) -> None:
    """Set the range of the y axis so that outliers are outside, and list them in the layout.

    levels  values that must be inside
    """
    found = axis_range([line["y"] for line in lines], log)
    if found is None:
        return
    low, high = found.low, found.high
    if not found.log:
        pad = 0.02 * (high - low)
        low, high = min([low, *(v - pad for v in levels)]), max([high, *(v + pad for v in levels)])
    layout["yaxis"] |= {"type": "log" if found.log else "linear", "range": [low, high]}
    outside = [_farthest(lines[i], low, high, found.log) for i in found.outside]
    layout["meta"] = {"outside": outside}


def _farthest(line: Mapping[str, Any], low: float, high: float, log: bool) -> str:
    values = [y for y in line["y"] if y is not None]
    bottom, top = (10**low, 10**high) if log else (low, high)
    far = max(values) if max(values) - top > bottom - min(values) else min(values)
    name = unescape(line["name"])
    return f"{name} ({signed(far, 0) if abs(far) >= 100 else signed(far, 2)})"


def small_layout(title: str, x_title: str, **x_axis: Any) -> dict[str, Any]:
    """Make the layout of a small figure."""
    axis = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    return {
        "title": {"text": title, "x": 0, "xref": "paper", "font": {"size": 13, "color": INK}},
        "xaxis": {**axis, **x_axis, "title": {"text": x_title}},
        "yaxis": {**axis},
        "margin": {"l": 44, "r": 8, "t": 34, "b": 38},
        "height": 250,
        "hovermode": "closest",
    }
