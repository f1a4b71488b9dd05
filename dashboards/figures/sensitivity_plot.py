"""Plot of what a method keeps and forgets by its learning rate, or by a hyper-parameter."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.analysis.sensitivity import RATE, Dependence, MethodSensitivity
from unlearnbench.api.benchmark import HeadlineMetric

from ..formatting import rate_text, value_text
from .curve_plot import small_layout, trace
from .palette import DASHES
from .tradeoff_plot import Style, meta

_MANY = 6
"""Most values that the axis names one by one."""


def sensitivity(
    method: MethodSensitivity, by: Dependence, of: HeadlineMetric, start: float | None, style: Style
) -> dict[str, Any]:
    """Draw a number of the headline by one hyper-parameter: means as lines, seeds as points.

    start  the start model's number, the dotted level
    """
    axis = _Axis(by, [one for line in by.lines for one in line])
    layout = small_layout(f"{method.family}: {of.short}", by.name)
    layout["xaxis"] |= axis.layout
    if start is not None:
        ends = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": start, "y1": start}
        style_of = {"type": "line", "name": "start", "line": {"width": 1, "dash": "dot"}}
        layout["shapes"] = [style_of | ends]
    traces: list[dict[str, Any]] = []
    for number, line in enumerate(by.lines):
        dash = DASHES[number % len(DASHES)]
        traces += _traces(method, by, line, of, axis, style, dash)
    return {"data": traces, "layout": layout}


class _Axis:
    """Positions of values: numbers on a linear or logarithmic axis, texts beside each other."""

    def __init__(self, by: Dependence, settings: Sequence[Setting]) -> None:
        values = [by.value(one) for one in settings]
        self._numeric = all(type(v) in (int, float) for v in values)
        self._text = rate_text if by.name == RATE else value_text
        log = (
            self._numeric
            and min(values) > 0
            and (by.name == RATE or max(values) >= 10 * min(values))
        )
        self.layout: dict[str, Any] = {
            "type": "log" if log else "linear" if self._numeric else "category"
        }
        distinct = sorted(set(values)) if self._numeric else []
        if distinct and len(distinct) <= _MANY:
            self.layout |= {"tickvals": distinct, "ticktext": [self.text(v) for v in distinct]}

    def at(self, value: Any) -> Any:
        """The position of a value."""
        return value if self._numeric else self.text(value)

    def text(self, value: Any) -> str:
        """The value in print."""
        return self._text(value)


def _traces(
    method: MethodSensitivity,
    by: Dependence,
    line: Sequence[Setting],
    of: HeadlineMetric,
    axis: _Axis,
    style: Style,
    dash: str,
) -> list[dict[str, Any]]:
    first = line[0]
    rate = "" if by.name == RATE else f", rate {rate_text(first.learning_rate)}"
    name = f"{method.family if by.name == RATE and len(by.lines) == 1 else first.method}{rate}"
    colour = style.colour(method.family)
    at = f"{escape(by.name)} %{{x}}: %{{y:.4g}}"
    tags = meta("own", method.family, slot=style.slots[method.family], alpha=0.9)
    means = trace(
        [axis.at(by.value(one)) for one in line],
        [one.metrics[of.column] for one in line],
        name,
        f"%{{fullData.name}}<br>{at}, mean of {max(len(one.rows) for one in line)}",
        mode="lines+markers",
        line={"color": colour, "width": 1.6, "dash": dash},
        marker={"color": colour, "size": 6},
        meta=tags,
    )
    seeds = [(one, row) for one in line for row in one.rows if len(one.rows) > 1]
    if not seeds:
        return [means]
    points = trace(
        [axis.at(by.value(one)) for one, _ in seeds],
        [row.metrics[of.column] for _, row in seeds],
        name,
        f"%{{text}}, {at}",
        mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.4},
        text=[f"seed {row.seed}" for _, row in seeds],
        meta=tags,
    )
    return [means, points]
