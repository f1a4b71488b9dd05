"""Points of a trade-off panel: marks, error bars over seeds, and hover texts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.api.benchmark import HeadlineMetric
from unlearnbench.stats.t_interval import Interval

from ..formatting import interval_text, rate_text, short, signed
from .palette import faded
from .tradeoff_data import Panel, Trajectory, position


def marks(panel: Panel, trajectory: Trajectory, symbol: str, lead: int) -> dict[str, Any]:
    """Set opacity and size by point: beaten ones pale, the last epoch large."""
    opacity, size = [0.0] * lead, [1.0] * lead
    for setting in trajectory.points:
        opacity.append(1.0 if setting in panel.front else 0.4)
        size.append(10.5 if setting is trajectory.points[-1] else 6.5)
    return {"opacity": opacity, "size": size, "symbol": symbol}


def bars(
    points: Sequence[Setting | None],
    metric: str,
    lead: int,
    colour: str,
    digits: int = 9,
    **style: float,
) -> dict[str, Any] | None:
    """Make error bars of t intervals, after `lead` points without one; None if no point has one.

    points  None where none is drawn
    """
    found = [None if s is None else drawn_interval(s, metric) for s in points]
    made = error_bars([*[None] * lead, *found], digits, **style)
    return {**made, "color": faded(colour, 0.45)} if made else None


def error_bars(
    intervals: Sequence[Interval | None], digits: int, **style: float
) -> dict[str, Any] | None:
    """Make error bars of intervals; None if there are none."""
    if not any(intervals):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [short(i.high - i.mean, digits) if i else 0.0 for i in intervals],
        "arrayminus": [short(i.mean - i.low, digits) if i else 0.0 for i in intervals],
        **style,
    }


def drawn_interval(setting: Setting, metric: str) -> Interval | None:
    """A setting's interval, cut at zero: a t interval of few seeds reaches beyond what is possible.

    No metric changes its sign: logarithms of p-values are at most 0, all others at least 0.
    """
    found = setting.interval(metric)
    if found is None:
        return None
    if found.mean < 0:
        return replace(found, high=min(found.high, 0.0))
    return replace(found, low=max(found.low, 0.0))


def hover(setting: Setting, panel: Panel) -> str:
    """Write the hover text: means with intervals, the range over seeds, and caveats."""
    utility, quality = position(setting) or (0.0, 0.0)
    kept, forgotten, distance = panel.headline.kept, panel.headline.forgotten, ""
    if forgotten.test is not None:
        statistic = setting.metrics.get(forgotten.test.distance)
        distance = "" if statistic is None else f"  (KS D {statistic:.3f})"
    share = ""
    if panel.start and panel.start[0] > 0:
        share = f"  ({utility / panel.start[0]:.0%} of the start)"
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate_text(setting.learning_rate)}"
        f"  epoch {setting.epoch}",
        _line(setting, kept, utility) + share,
        _line(setting, forgotten, quality) + distance,
        *_seeds(setting, kept, forgotten),
    ]
    if panel.has_collapsed(setting):
        good = "high" if forgotten.better == "higher" else "low"
        name = html.escape(forgotten.name)
        lines.append(f"<i>collapsed: {good} {name} would be no success here</i>")
    return "<br>".join(lines)


def _line(setting: Setting, metric: HeadlineMetric, mean: float) -> str:
    """Write a mean and, in brackets, its interval."""
    interval = setting.interval(metric.column)
    ends = "" if interval is None else f" {interval_text(interval, metric.digits)}"
    return f"{html.escape(metric.label)} {signed(mean, metric.digits)}{ends}"


def _seeds(setting: Setting, kept: HeadlineMetric, forgotten: HeadlineMetric) -> list[str]:
    if len(setting.rows) == 1:
        return [f"seed {setting.rows[0].seed}"]
    utility, quality = setting.spread(kept.column), setting.spread(forgotten.column)
    if utility is None or quality is None:
        return []
    interval = setting.interval(kept.column)
    if interval is None or interval.is_range:
        return [f"mean of {len(setting.rows)} seeds; min-max: their smallest and largest value"]
    return [
        f"mean of {len(setting.rows)} seeds; brackets: {interval.level:.0%} interval of the mean",
        f"range over seeds: {_range(utility, kept.digits)}, {_range(quality, forgotten.digits)}",
    ]


def _range(ends: tuple[float, float], digits: int) -> str:
    return " to ".join(signed(end, digits) for end in ends)
