"""Does it last: what attacks give back of what each method removed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.lasting import AttackedPanel, attack_of
from unlearnbench.analysis.lasting_text import sentences, variant_label
from unlearnbench.stats.t_interval import Interval

from ...figures.lasting_plot import before_and_under, leaks, relearning
from ...formatting import rate_text, signed
from ...report_section import PageContext, ReportSection
from .data import columns, lasting_panels, worst_prompt
from .sampled import LeakColumn, leak_curves


def _values(context: PageContext) -> Mapping[str, Any] | None:
    panels = context.once(lasting_panels)
    if not panels:
        return None
    found = [(columns(one), LeakColumn(context, one)) for one in panels]
    sampled = [curve for one in panels for curve in leak_curves(context, one).values()]
    stepped = {name for panel in panels for name in _stepped(panel)}
    return {
        "panels": [(one, sentences(one), *of) for one, of in zip(panels, found, strict=True)],
        "leaks": next(iter(sampled), None),
        "places": [(one.model, one.forget_fraction) for one in panels],
        "measure": panels[0].column.label,
        "curves": [one.label for of, _ in found[:1] for one in of if one.attack in stepped],
        "bars": any(one.attack not in stepped for of, _ in found for one in of),
        "stepped": stepped,
        "brackets": _brackets(panels),
        "number": signed,
        "change": _change,
        "ends": _ends,
        "steps": _steps,
        "variant": variant_label,
        "rate_of": rate_text,
    }


def _stepped(panel: AttackedPanel) -> set[str]:
    """List the attacks that have curves."""
    return {curve.attack for one in panel.settings for curve in one.curves}


def _brackets(panels: tuple[AttackedPanel, ...]) -> list[str]:
    """Name the intervals in brackets."""
    every = (u.lasting_interval for p in panels for s in p.settings for u in s.under)
    found = {one.n: one.name for one in every if one is not None}
    return [found[n] for n in sorted(found)]


def _ends(interval: Interval) -> str:
    """Format an interval, or of two seeds their range, within 0 and 1."""
    name = "min-max " if interval.is_range else ""
    low, high = max(0.0, interval.low), min(1.0, interval.high)
    return f"{name}[{signed(low, 2)}, {signed(high, 2)}]"


def _change(gain: float | None) -> str:
    """Format a gain with its sign."""
    return "" if gain is None else ("+" if gain >= 0 else "") + signed(gain, 2)


def _steps(value: float | None) -> str:
    """Format the steps to half, which may never be reached."""
    return "" if value is None else "never" if math.isinf(value) else signed(value, 1)


def _figures(context: PageContext) -> list[dict[str, Any]]:
    """Draw the figures of each panel with attacks, by kind."""
    found: list[dict[str, Any]] = []
    for panel in context.once(lasting_panels):
        labels = {one.attack: one.label for one in columns(panel)}
        stepped = _stepped(panel)
        curves = [
            (f"{labels[name]}: {title}" if len(stepped) > 1 else title, figure)
            for name in labels
            if name in stepped
            for title, figure in relearning(panel, name, context.style)
        ]
        others = [v for v in panel.variants if (n := attack_of(v)) in labels and n not in stepped]
        bars = before_and_under(panel, others, context.style, worst_prompt(context, panel))
        leaked = leaks(panel, leak_curves(context, panel), context.style)
        found.append({"curves": curves, "bars": bars, "leaks": leaked})
    return found


SECTION = ReportSection(
    folder="lasting",
    id="lasting",
    title="Does it last?",
    values=_values,
    lazy_data=_figures,
)
