"""Figures of attacks: curves over their steps, and bars before and under them.

Plain values as in `curve_plot.py`; a mark's `customdata` is the variant whose answers it opens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from unlearnbench.analysis.lasting import (
    AttackedPanel,
    AttackedSetting,
    RelearningCurve,
)

from ..formatting import rate_text, short
from .curve_plot import line_style, small_layout, trace
from .tradeoff_axes import INK, MUTED
from .tradeoff_plot import Style, meta
from .tradeoff_points import error_bars

BAR = 21
"""Height of a bar with its gap, in pixels."""
START, RETAIN = "start model", "retain model"
Figure = dict[str, Any]
Titled = list[tuple[str, Figure]]
"""Titles and figures."""


@dataclass(frozen=True)
class Worst:
    """The worst of several prompts, question by question."""

    label: str
    """`worst of 3 prompts`."""
    values: Mapping[str, float | None]
    """By id of a run, and by the name of a reference."""


@dataclass(frozen=True)
class LeakCurve:
    """The probability that one of k sampled answers leaks, mean over questions."""

    variant: str
    ks: tuple[int, ...]
    leaks: tuple[float, ...]
    bounds: tuple[float, ...]
    """Upper bounds, each with probability 1 − alpha."""
    samples: int
    """Sampled answers to each question."""
    threshold: float
    """Least ROUGE-L recall of a leak."""
    alpha: float


def relearning(panel: AttackedPanel, attack: str, style: Style) -> Titled:
    """Draw an attack's curves, a figure for each method, with both references in each."""
    families: dict[str, list[tuple[AttackedSetting, RelearningCurve]]] = {}
    for one in panel.settings:
        for curve in one.curves:
            if curve.attack == attack:
                families.setdefault(one.setting.family, []).append((one, curve))
    best = panel.best
    low, high = _range(panel, [curve for several in families.values() for _, curve in several])
    found: Titled = []
    for several in families.values():
        last = {_trajectory(one): (one, curve) for one, curve in several}
        lines = [_curve(one, curve, style, one in best) for one, curve in last.values()]
        layout = small_layout("", "steps of the attack")
        layout["yaxis"]["range"] = [low, high]
        _, first = several[0]
        layout["xaxis"] |= {"tickvals": _ticks(first.steps)}
        shown = next((one for one, _ in several if one in best), several[-1][0])
        found.append((title_of(shown), {"data": [*_references(first), *lines], "layout": layout}))
    return found


def _trajectory(one: AttackedSetting) -> tuple[str, float | None]:
    return one.setting.method, one.setting.learning_rate


def _ticks(steps: Sequence[int]) -> list[int]:
    """List the steps that have room on the axis: none nearer to the next than a tenth of it."""
    room, found = steps[-1] / 10, [steps[-1]]
    for step in reversed(steps[:-1]):
        if found[-1] - step >= room:
            found.append(step)
    return found[::-1]


def _range(panel: AttackedPanel, curves: Sequence[RelearningCurve]) -> tuple[float, float]:
    if panel.column.bounds == (0.0, 1.0):
        return -0.02, 1.04
    lines = [line for c in curves for line in (*c.seeds, c.retain, c.start)]
    values = [v for line in lines for v in line if v is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    pad = 0.05 * (high - low or 1.0)
    return low - pad, high + pad


def _curve(one: AttackedSetting, curve: RelearningCurve, style: Style, best: bool) -> Figure:
    setting = one.setting
    run, seeds = setting.rows[0].run_id, len(setting.rows)
    error = error_bars(curve.intervals, 3, width=3, thickness=1)
    rate, alpha = setting.learning_rate, 0.95 if best else 0.45
    return trace(
        curve.steps,
        curve.mean,
        f"{setting.method}, rate {rate_text(rate)}, epoch {setting.epoch}",
        "%{fullData.name}<br>after %{x} steps: %{y:.3f}"
        f"{f', mean of {seeds} seeds' if seeds > 1 else ''}",
        mode="lines+markers",
        customdata=[[run, setting.epoch, f"{curve.attack}@{step}"] for step in curve.steps],
        marker={"size": 5, "color": style.colour(setting.family)},
        **({} if error is None else {"error_y": error}),
        **line_style(style, setting.family, rate, width=2.2, alpha=alpha),
    )


def _references(curve: RelearningCurve) -> list[Figure]:
    """Draw the retain model's curve, which is the null, and the start model's."""
    return [
        trace(
            *(curve.steps, values, name, f"{name}<br>after %{{x}} steps: %{{y:.3f}}"),
            mode="lines",
            line={"color": MUTED, "width": 1.6, "dash": dash},
            connectgaps=True,
            meta=meta("reference"),
        )
        for name, values, dash in ((START, curve.start, "dot"), (RETAIN, curve.retain, "solid"))
        if any(value is not None for value in values)
    ]


def leaks(panel: AttackedPanel, curves: Mapping[str, LeakCurve], style: Style) -> Titled:
    """Draw the probability that one of k sampled answers leaks, a figure for each method.

    curves  by id of a run, or name of a reference
    """
    found: Titled = []
    for one in panel.best:
        run = one.setting.rows[0].run_id
        if (curve := curves.get(run)) is None:
            continue
        layout = small_layout("", "sampled answers k")
        layout["xaxis"] |= {"type": "log", "tickvals": list(curve.ks)}
        layout["yaxis"]["range"] = [-0.02, 1.04]
        colour, tags = style.colour(one.setting.family), _tags(one, style, 0.95)
        of_setting: Figure = {
            "meta": tags,
            "customdata": [[run, one.setting.epoch, curve.variant] for _ in curve.ks],
        }
        lines = [
            _leaks(curves[name], name, line={"color": MUTED, "dash": dash}, meta=meta("reference"))
            for name, dash in ((START, "dot"), (RETAIN, "solid"))
            if name in curves
        ]
        own = _leaks(curve, one.setting.family, line={"color": colour, "width": 2.2}, **of_setting)
        bound = trace(
            *(curve.ks, curve.bounds, "bound"),
            f"{100 * (1 - curve.alpha):g} % upper bound at %{{x}}: %{{y:.3f}}",
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 9, "line": {"width": 2}, "color": colour},
            **of_setting,
        )
        found.append((title_of(one), {"data": [*lines, own, bound], "layout": layout}))
    return found


def _leaks(curve: LeakCurve, name: str, **more: Any) -> Figure:
    hover = "%{fullData.name}<br>one of %{x} answers leaks: %{y:.3f}"
    return trace(curve.ks, curve.leaks, name, hover, mode="lines", **more)


def _tags(one: AttackedSetting, style: Style, alpha: float) -> Figure:
    setting = one.setting
    slot = style.slots[setting.family]
    return meta("lasting", setting.family, setting.learning_rate, slot=slot, alpha=alpha)


def before_and_under(
    panel: AttackedPanel, variants: Sequence[str], style: Style, worst: Worst | None = None
) -> Titled:
    """Draw bars before and under attacks, a figure for each method, with marks of both references.

    variants  those that are drawn
    worst     of several prompts, by id of a run or name of a reference
    """
    return [
        (title_of(one), _bar_figure(panel, one, variants, style, worst))
        for one in panel.best
        if any(one.at(variant) for variant in variants)
    ]


def title_of(one: AttackedSetting) -> str:
    """Name of a method above its figure; says so where the setting keeps too little."""
    family = one.setting.family
    return family if one.keeps_utility else f"{family} (keeps too little)"


def _bar_figure(
    panel: AttackedPanel,
    one: AttackedSetting,
    variants: Sequence[str],
    style: Style,
    worst: Worst | None,
) -> Figure:
    setting = one.setting
    run, colour = setting.rows[0].run_id, style.colour(setting.family)
    found = [under for variant in variants if (under := one.at(variant)) is not None]
    names = ["before", *(under.variant for under in found)]
    values = [found[0].before, *(under.after for under in found)]
    intervals = [None, *(under.after_interval for under in found)]
    marks = {
        name: [models[found[0].variant].before, *(models[u.variant].after for u in found)]
        for name, models in ((RETAIN, panel.retain), (START, panel.start))
    }
    if worst is not None and (at := worst.values.get(run)) is not None:
        names.append(worst.label)
        values.append(at)
        intervals.append(None)
        for name, numbers in marks.items():
            numbers.append(worst.values.get(name))
    alphas = [0.35, *[0.85] * (len(names) - 1)]
    bars: Figure = {
        **{"type": "bar", "orientation": "h", "y": names, "showlegend": False, "width": 0.62},
        "x": [*map(short, values)],
        "marker": {"color": colour, "opacity": alphas},
        "customdata": [[run, setting.epoch, name if name in variants else ""] for name in names],
        "name": escape(f"{setting.method}, rate {rate_text(setting.learning_rate)}"),
        "hovertemplate": "%{fullData.name}<br>%{y}: %{x:.3f}<extra></extra>",
        "meta": _tags(one, style, 0.85),
    }
    if error := error_bars(intervals, 3, width=3, thickness=1):
        bars["error_x"] = {**error, "color": INK}
    layout = small_layout("", escape(panel.column.label))
    layout["xaxis"] |= {"range": [-0.01, 1.03]} if panel.column.bounds == (0.0, 1.0) else {}
    layout["yaxis"] |= {"type": "category", "autorange": "reversed", "showgrid": False}
    layout |= {"height": 84 + BAR * len(names), "bargap": 0.2}
    return {"data": [bars, *_marks(names, marks)], "layout": layout}


def _marks(names: Sequence[str], values: Mapping[str, Sequence[float | None]]) -> list[Figure]:
    """Mark both other models' values across the bars."""
    return [
        {
            **{"type": "scatter", "mode": "markers", "y": list(names), "showlegend": False},
            "x": [*map(short, numbers)],
            "marker": {
                **{"symbol": "line-ns-open", "size": BAR - 3, "color": MUTED},
                "line": {"width": 3 if name == RETAIN else 1},
            },
            **{"name": name, "cliponaxis": False},
            "hovertemplate": f"{name}<br>%{{y}}: %{{x:.3f}}<extra></extra>",
            "meta": meta("reference"),
        }
        for name, numbers in values.items()
        if any(value is not None for value in numbers)
    ]
