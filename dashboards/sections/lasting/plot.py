"""Figures of attacks: curves over their steps and samples.

A mark's `customdata` is the variant whose answers it opens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.relearning_curve import RelearningCurve
from unlearnbench.analysis.sampled_leaks import LeakCurve

from ...figures.marks import SHARE_RANGE, Figure, error_bars, line_style, small_layout, trace
from ...figures.palette import MUTED, Style, meta
from ...formatting import rate_text

START, RETAIN = "start model", "retain model"
Titled = list[tuple[str, Figure]]
"""Titles and figures."""


def relearning(panel: AttackedPanel, attack: str, style: Style) -> Titled:
    """Draw an attack's curves, a figure for each method, with both references in each."""
    families: dict[str, list[tuple[AttackedSetting, RelearningCurve]]] = {}
    for setting in panel.settings:
        for curve in setting.curves:
            if curve.attack == attack:
                families.setdefault(setting.setting.family, []).append((setting, curve))
    best = panel.shown
    titled: Titled = []
    for several in families.values():
        # Of a trajectory the last epoch, or the one that is shown as the best.
        drawn = {item.setting.trajectory: (item, curve) for item, curve in several}
        drawn |= {item.setting.trajectory: (item, curve) for item, curve in several if item in best}
        lines = [_curve(item, curve, style, item in best) for item, curve in drawn.values()]
        layout = small_layout("", "steps of the attack", tickvals=several[0][1].steps)
        if panel.column.bounds == (0.0, 1.0):
            layout["yaxis"]["range"] = SHARE_RANGE
        shown = next((item for item, _ in several if item in best), several[-1][0])
        first = several[0][1]
        ends = {START: (first.steps, first.start), RETAIN: (first.steps, first.retain)}
        hover = "after %{x} steps: %{y:.3f}"
        data = [*_references(ends, hover), *lines]
        titled.append((title_of(shown), {"data": data, "layout": layout}))
    return titled


def _curve(item: AttackedSetting, curve: RelearningCurve, style: Style, best: bool) -> Figure:
    setting = item.setting
    run, seeds = setting.rows[0].run_id, len(setting.rows)
    rate, alpha = setting.learning_rate, 0.95 if best else 0.45
    return trace(
        curve.steps,
        curve.mean,
        f"{setting.method}, rate {rate_text(rate)}, {setting.when}",
        "%{fullData.name}<br>after %{x} steps: %{y:.3f}"
        f"{f', mean of {seeds} seeds' if seeds > 1 else ''}",
        customdata=[[run, setting.epoch, f"{curve.attack}@{step}"] for step in curve.steps],
        error_y=error_bars(curve.intervals, width=3, thickness=1),
        **line_style(style, setting.family, rate, width=2.2, alpha=alpha),
    )


def _references(
    lines: Mapping[str, tuple[Sequence[int], Sequence[float | None]]], hover: str
) -> list[Figure]:
    """Draw the retain model, which is the null, and the start model, dotted."""
    return [
        trace(
            *(x, y, name, f"{name}<br>{hover}"),
            mode="lines",
            line={"color": MUTED, "width": 1.6, "dash": "dot" if name == START else "solid"},
            connectgaps=True,
            meta=meta("reference"),
        )
        for name, (x, y) in lines.items()
        if any(value is not None for value in y)
    ]


def leaks(panel: AttackedPanel, curves: Mapping[str, LeakCurve], style: Style) -> Titled:
    """Draw the probability that one of k sampled answers leaks, a figure for each method.

    curves  by id of a run, or name of a reference
    """
    titled: Titled = []
    hover = "one of %{x} answers leaks: %{y:.3f}"
    ends = {name: (c.ks, c.leaks) for name, c in curves.items() if name in (START, RETAIN)}
    for item in panel.shown:
        run, family = item.setting.rows[0].run_id, item.setting.family
        if (curve := curves.get(run)) is None:
            continue
        layout = small_layout("", "sampled answers k", type="log", tickvals=list(curve.ks))
        layout["yaxis"]["range"] = SHARE_RANGE
        colour = style.colour(family)
        of_setting: Figure = {
            "meta": _tags(item, style, 0.95),
            "customdata": [[run, item.setting.epoch, curve.variant] for _ in curve.ks],
        }
        line = {"color": colour, "width": 2.2}
        part = trace(
            *(curve.ks, curve.leaks, family, f"%{{fullData.name}}<br>{hover}"),
            **{"mode": "lines", "line": line, **of_setting},
        )
        bound = trace(
            *(curve.ks, curve.bounds, "bound"),
            f"{100 * (1 - curve.alpha):g} % upper bound at %{{x}}: %{{y:.3f}}",
            mode="markers",
            marker={"symbol": "line-ew-open", "size": 9, "line": {"width": 2}, "color": colour},
            **of_setting,
        )
        data = [*_references(ends, hover), part, bound]
        titled.append((title_of(item), {"data": data, "layout": layout}))
    return titled


def _tags(item: AttackedSetting, style: Style, alpha: float) -> dict[str, Any]:
    setting = item.setting
    slot = style.slots[setting.family]
    return meta("lasting", setting.family, setting.learning_rate, slot=slot, alpha=alpha)


def title_of(setting: AttackedSetting) -> str:
    """Name of a method above its figure; says so where the setting keeps too little."""
    family = setting.setting.family
    return family if setting.keeps_utility else f"{family} (keeps too little)"
