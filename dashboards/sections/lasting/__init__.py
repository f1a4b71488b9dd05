"""Does it last: what attacks give back of what each method removed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unlearnbench.analysis.lasting import AttackedPanel, attack_of
from unlearnbench.analysis.text import attack_sentences, variant_label

from ...figures.lasting_plot import before_and_under, leaks, relearning
from ...formatting import interval_names, interval_text, rate_text, signed
from ...report_section import PageContext, ReportSection
from .data import LeakColumn, columns, leak_curves, panel_of, worst_prompt


def _values(context: PageContext) -> Mapping[str, Any] | None:
    panels = context.report.lasting
    if not panels:
        return None
    found = [(columns(one), LeakColumn(context, one)) for one in panels]
    sampled = [curve for one in panels for curve in leak_curves(context, one).values()]
    stepped = {name for panel in panels for name in _stepped(panel)}
    return {
        "panels": [
            (one, attack_sentences(one), *of) for one, of in zip(panels, found, strict=True)
        ],
        "leaks": next(iter(sampled), None),
        "measure": panels[0].column.label,
        "curves": [one.label for of, _ in found[:1] for one in of if one.attack in stepped],
        "bars": any(one.attack not in stepped for of, _ in found for one in of),
        "stepped": stepped,
        "brackets": interval_names(
            u.lasting_interval for p in panels for s in p.settings for u in s.under
        ),
        "number": signed,
        "change": _change,
        "ends": interval_text,
        "steps": _steps,
        "variant": variant_label,
        "rate_of": rate_text,
    }


def _stepped(panel: AttackedPanel) -> set[str]:
    """List the attacks that have curves."""
    return {curve.attack for one in panel.settings for curve in one.curves}


def _change(gain: float | None) -> str:
    """Format a gain with its sign."""
    return "" if gain is None else ("+" if gain >= 0 else "") + signed(gain, 2)


def _steps(value: float | None) -> str:
    """Format the steps to half, which may never be reached."""
    return "" if value is None else "never" if math.isinf(value) else signed(value, 1)


def _figures(context: PageContext) -> list[dict[str, Any]]:
    """Draw the figures of each panel, by kind; none of a panel without attacks."""
    found: list[dict[str, Any]] = []
    for place in context.panels:
        if (panel := panel_of(context, place)) is None:
            found.append({})
            continue
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


SECTION = ReportSection("lasting", "lasting", "Does it last?", _values, lazy_data=_figures)
