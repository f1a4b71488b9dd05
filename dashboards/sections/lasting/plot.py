"""Figures of attacks: curves over their steps and samples.

A mark's `customdata` are the run, the epoch and the variant (`relearning@13`) whose answers a click
on the mark opens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.relearning_curve import RelearningCurve
from unlearnbench.analysis.sampled_leaks import LeakCurve

from ...figures.marks import SHARE_RANGE, Figure, error_bars, line_style, small_layout, trace
from ...figures.palette import MUTED, Style, meta
from ...formatting import rate_text

START = "start model"
RETAIN = "retain model"
Titled = list[tuple[str, Figure]]
"""Titles and figures."""
SettingCurve = tuple[AttackedSetting, RelearningCurve]
"""A setting, and its curve over the steps of one attack."""


def relearning(panel: AttackedPanel, attack: str, style: Style) -> Titled:
    """Draw an attack's curves, a figure for each method, with both references in each."""
    curves_of_family: dict[str, list[SettingCurve]] = {}
    for setting in panel.settings:
        for curve in setting.curves:
            if curve.attack == attack:
                of_family = curves_of_family.setdefault(setting.setting.family, [])
                of_family.append((setting, curve))

    best = panel.shown
    titled: Titled = []
    for of_family in curves_of_family.values():
        first_curve = of_family[0][1]
        layout = small_layout("", "steps of the attack", tickvals=first_curve.steps)
        if panel.column.bounds == (0.0, 1.0):
            layout["yaxis"]["range"] = SHARE_RANGE
        ends = {
            START: (first_curve.steps, first_curve.start),
            RETAIN: (first_curve.steps, first_curve.retain),
        }
        references = _references(ends, "after %{x} steps: %{y:.3f}")
        lines = [
            _curve(setting, curve, style, is_best=setting in best)
            for setting, curve in _one_of_each_trajectory(of_family, best)
        ]
        best_of_family = [setting for setting, _ in of_family if setting in best]
        named = best_of_family[0] if best_of_family else of_family[-1][0]
        titled.append((title_of(named), {"data": [*references, *lines], "layout": layout}))
    return titled


def _one_of_each_trajectory(
    curves: Sequence[SettingCurve], best: Sequence[AttackedSetting]
) -> Iterable[SettingCurve]:
    """Return the curve of a best setting for each trajectory, or else the last epoch's curve."""
    by_trajectory: dict[Any, SettingCurve] = {}
    for setting, curve in curves:
        by_trajectory[setting.setting.trajectory] = (setting, curve)
    for setting, curve in curves:
        if setting in best:
            by_trajectory[setting.setting.trajectory] = (setting, curve)
    return by_trajectory.values()


def _curve(
    attacked: AttackedSetting, curve: RelearningCurve, style: Style, *, is_best: bool
) -> Figure:
    """Draw the curve of a setting. Curves of settings that are not the best are pale."""
    setting = attacked.setting
    run_id = setting.rows[0].run_id
    seed_count = len(setting.rows)
    hover = "%{fullData.name}<br>after %{x} steps: %{y:.3f}"
    if seed_count > 1:
        hover += f", mean of {seed_count} seeds"
    style_of_line = line_style(
        style, setting.family, setting.learning_rate, width=2.2, alpha=0.95 if is_best else 0.45
    )
    return trace(
        curve.steps,
        curve.mean,
        f"{setting.method}, rate {rate_text(setting.learning_rate)}, {setting.when}",
        hover,
        customdata=[[run_id, setting.epoch, f"{curve.attack}@{step}"] for step in curve.steps],
        error_y=error_bars(curve.intervals, width=3, thickness=1),
        **style_of_line,
    )


def _references(
    lines: Mapping[str, tuple[Sequence[int], Sequence[float | None]]], hover: str
) -> list[Figure]:
    """Draw the retain model solid and the start model dotted.

    Args:
        lines: x and y by the name of the model. A model without a number has no line.
        hover: Text at a point, after the name of the model.
    """
    traces: list[Figure] = []
    for name, (x, y) in lines.items():
        if all(value is None for value in y):
            continue
        line = {"color": MUTED, "width": 1.6, "dash": "dot" if name == START else "solid"}
        traces.append(
            trace(
                x,
                y,
                name,
                f"{name}<br>{hover}",
                mode="lines",
                line=line,
                connectgaps=True,
                meta=meta("reference"),
            )
        )
    return traces


def leaks(panel: AttackedPanel, curves: Mapping[str, LeakCurve], style: Style) -> Titled:
    """Draw the probability that one of k sampled answers leaks, a figure for each method.

    Args:
        panel: Settings that were attacked.
        curves: Curves by the id of a run, or by the name of a reference.
        style: Colours of the methods.
    """
    hover = "one of %{x} answers leaks: %{y:.3f}"
    ends = {
        name: (curve.ks, curve.leaks) for name, curve in curves.items() if name in (START, RETAIN)
    }
    titled: Titled = []
    for attacked in panel.shown:
        curve = curves.get(attacked.setting.rows[0].run_id)
        if curve is None:
            continue
        layout = small_layout("", "sampled answers k", type="log", tickvals=list(curve.ks))
        layout["yaxis"]["range"] = SHARE_RANGE
        data = [*_references(ends, hover), *_leak_curve(attacked, curve, style, hover)]
        titled.append((title_of(attacked), {"data": data, "layout": layout}))
    return titled


def _leak_curve(
    attacked: AttackedSetting, curve: LeakCurve, style: Style, hover: str
) -> tuple[Figure, Figure]:
    """Draw a method's leaks as a line, and their upper bounds as dashes."""
    setting = attacked.setting
    colour = style.colour(setting.family)
    opened: Figure = {
        "meta": _tags(attacked, style, 0.95),
        "customdata": [[setting.rows[0].run_id, setting.epoch, curve.variant] for _ in curve.ks],
    }
    line = trace(
        curve.ks,
        curve.leaks,
        setting.family,
        f"%{{fullData.name}}<br>{hover}",
        mode="lines",
        line={"color": colour, "width": 2.2},
        **opened,
    )
    bounds = trace(
        curve.ks,
        curve.bounds,
        "bound",
        f"{100 * (1 - curve.alpha):g} % upper bound at %{{x}}: %{{y:.3f}}",
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 9, "line": {"width": 2}, "color": colour},
        **opened,
    )
    return line, bounds


def _tags(attacked: AttackedSetting, style: Style, alpha: float) -> dict[str, Any]:
    """Make the metadata by which the page filters and recolours a trace."""
    setting = attacked.setting
    slot = style.slots[setting.family]
    return meta("lasting", setting.family, setting.learning_rate, slot=slot, alpha=alpha)


def title_of(attacked: AttackedSetting) -> str:
    """Name a method above its figure, and say if the setting keeps too little."""
    family = attacked.setting.family
    return family if attacked.keeps_utility else f"{family} (keeps too little)"
