"""A point of a panel: its mark, its bars over seeds, and what it says when it is pointed at."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from unlearnbench.intervals import Interval
from unlearnbench.ranking import Setting

from .palette import faded, rate_text, signed
from .pareto import Panel, Trajectory, position


def marks(panel: Panel, trajectory: Trajectory, symbol: str, lead: int) -> dict[str, Any]:
    """Opacity and size by point: beaten ones pale, the last epoch large."""
    opacity, size = [0.0] * lead, [1.0] * lead
    for setting in trajectory.points:
        opacity.append(1.0 if setting in panel.front else 0.4)
        size.append(10.5 if setting is trajectory.points[-1] else 6.5)
    return {"opacity": opacity, "size": size, "symbol": symbol}


def bars(points: Sequence[Setting], metric: str, lead: int, colour: str) -> dict[str, Any] | None:
    """The mean's bootstrap interval over seeds; None where no point has more seeds than one."""
    if all(len(s.rows) < 2 for s in points):
        return None
    found = [s.interval(metric) for s in points]
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0] * lead + [i.high - i.mean if i else 0.0 for i in found],
        "arrayminus": [0.0] * lead + [i.mean - i.low if i else 0.0 for i in found],
        "width": 0,
        "thickness": 1.2,
        "color": faded(colour, 0.45),
    }


def hover(setting: Setting, panel: Panel) -> str:
    """Means with their intervals, the range over seeds, and what would be misread."""
    utility, quality = position(setting) or (0.0, 0.0)
    statistic = setting.metrics["ks_statistic"]
    known = "" if statistic is None else f"  (KS D {statistic:.3f})"
    share = ""
    if panel.start and panel.start[0] > 0:
        share = f"  ({utility / panel.start[0]:.0%} of the start)"
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate_text(setting.learning_rate)}"
        f"  epoch {setting.epoch}",
        f"Model Utility {_mean(utility, setting.interval('model_utility'), 3)}{share}",
        "log₁₀ Forget Quality "
        f"{_mean(quality, setting.interval('log10_forget_quality'), 2)}{known}",
        *_seeds(setting),
    ]
    if panel.collapse_below is not None and utility < panel.collapse_below:
        lines.append("<i>collapsed: high Forget Quality would be no success here</i>")
    return "<br>".join(lines)


def _mean(mean: float, interval: Interval | None, digits: int) -> str:
    """A mean and, in brackets, its interval; of two seeds their range."""
    text = signed(mean, digits)
    if interval is None:
        return text
    name = "min-max " if interval.is_range else ""
    return f"{text} {name}[{signed(interval.low, digits)}, {signed(interval.high, digits)}]"


def _seeds(setting: Setting) -> list[str]:
    if len(setting.rows) == 1:
        return [f"seed {setting.rows[0].seed}"]
    kept, quality = setting.spread("model_utility"), setting.spread("log10_forget_quality")
    if kept is None or quality is None:
        return []
    interval = setting.interval("model_utility")
    if interval is None or interval.is_range:
        return [f"mean of {len(setting.rows)} seeds; min-max: their smallest and largest value"]
    return [
        f"mean of {len(setting.rows)} seeds; brackets: {interval.level:.0%} interval of the mean",
        *_coverage(interval),
        f"range over seeds: {signed(kept[0], 3)} to {signed(kept[1], 3)}, "
        f"{signed(quality[0], 2)} to {signed(quality[1], 2)}",
    ]


def _coverage(interval: Interval) -> list[str]:
    """How often such an interval holds the mean, where that is not its level."""
    _, semicolon, measured = interval.name.partition("; ")
    return [f"({measured})"] if semicolon else []
