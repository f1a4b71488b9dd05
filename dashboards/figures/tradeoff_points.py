"""Points of a trade-off panel: marks, error bars over seeds, and hover texts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.stats.t_interval import Interval

from ..formatting import rate_text, short, signed
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
    points: Sequence[Setting],
    metric: str,
    lead: int,
    colour: str,
    digits: int = 9,
    **style: float,
) -> dict[str, Any] | None:
    """Make error bars of t intervals, after `lead` points without one; None if no point has one."""
    found = [s.interval(metric) for s in points]
    if not any(found):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0] * lead + [short(i.high - i.mean, digits) if i else 0.0 for i in found],
        "arrayminus": [0.0] * lead + [short(i.mean - i.low, digits) if i else 0.0 for i in found],
        "color": faded(colour, 0.45),
        **style,
    }


def hover(setting: Setting, panel: Panel) -> str:
    """Write the hover text: means with intervals, the range over seeds, and caveats."""
    utility, quality = position(setting) or (0.0, 0.0)
    statistic = setting.metrics["ks_statistic"]
    distance = "" if statistic is None else f"  (KS D {statistic:.3f})"
    share = ""
    if panel.start and panel.start[0] > 0:
        share = f"  ({utility / panel.start[0]:.0%} of the start)"
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate_text(setting.learning_rate)}"
        f"  epoch {setting.epoch}",
        f"Model Utility {_mean(utility, setting.interval('model_utility'), 3)}{share}",
        "log₁₀ Forget Quality "
        f"{_mean(quality, setting.interval('log10_forget_quality'), 2)}{distance}",
        *_seeds(setting),
    ]
    if panel.collapse_below is not None and utility < panel.collapse_below:
        lines.append("<i>collapsed: high Forget Quality would be no success here</i>")
    return "<br>".join(lines)


def _mean(mean: float, interval: Interval | None, digits: int) -> str:
    """Format a mean and, in brackets, its interval; of two seeds, their range."""
    text = signed(mean, digits)
    if interval is None:
        return text
    name = "min-max " if interval.is_range else ""
    return f"{text} {name}[{signed(interval.low, digits)}, {signed(interval.high, digits)}]"


def _seeds(setting: Setting) -> list[str]:
    if len(setting.rows) == 1:
        return [f"seed {setting.rows[0].seed}"]
    utility, quality = setting.spread("model_utility"), setting.spread("log10_forget_quality")
    if utility is None or quality is None:
        return []
    interval = setting.interval("model_utility")
    if interval is None or interval.is_range:
        return [f"mean of {len(setting.rows)} seeds; min-max: their smallest and largest value"]
    return [
        f"mean of {len(setting.rows)} seeds; brackets: {interval.level:.0%} interval of the mean",
        f"range over seeds: {signed(utility[0], 3)} to {signed(utility[1], 3)}, "
        f"{signed(quality[0], 2)} to {signed(quality[1], 2)}",
    ]
