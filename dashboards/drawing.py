"""Plotly figures from the data of `pareto.py`.

Every trace says in `meta` which method, rate and role it has: the page filters and recolours by
that. Colours here are the light page's; the page swaps them where the reader's screen is dark.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from unlearnbench.ranking import Setting
from unlearnbench.table import Row

from .frame import INK, MUTED, Extent, extent, layout
from .labels import Label, place
from .palette import DASHES, PALETTE, SYMBOLS, by_rank, faded, rate_text, signed, slots
from .pareto import Panel, Trajectory, panels, position


def pareto(rows: Sequence[Row], *, published: bool = False) -> tuple[go.Figure, ...]:
    """A figure per model and forget fraction, straight from the table."""
    look = Look.of(rows)
    return tuple(draw(panel, look) for panel in panels(rows, published=published))


class Look:
    """Colour, dash and symbol of every trajectory, the same on all of a page's figures."""

    def __init__(
        self,
        colours: Mapping[str, int],
        dashes: Mapping[float | None, str],
        symbols: Mapping[str, str],
    ) -> None:
        self.colours, self.dashes, self.symbols = colours, dashes, symbols

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Look:
        """The look of a whole table."""
        runs = [r for r in rows if r.kind == "run"]
        families = sorted({r.family for r in runs})
        symbols: dict[str, str] = {}
        for family in families:
            variants = sorted({r.method for r in runs if r.family == family})
            symbols |= {m: SYMBOLS[i % len(SYMBOLS)] for i, m in enumerate(variants)}
        return cls(slots(families), by_rank([r.learning_rate for r in runs], DASHES), symbols)

    def colour(self, family: str) -> str:
        """On a light page."""
        light, _ = PALETTE[self.colours[family]]
        return light


def meta(role: str, family: str = "", rate: float | None = None, **more: Any) -> dict[str, Any]:
    """What the page needs to know of a trace."""
    return {"role": role, "family": family, "rate": rate_text(rate), **more}


def draw(panel: Panel, look: Look) -> go.Figure:
    """One panel."""
    (left, right), (low, high) = extent(panel)
    figure = go.Figure(layout={"template": go.layout.Template()})
    figure.add_traces([_trajectory(panel, t, look) for t in panel.trajectories])
    if len(panel.front) > 1:
        figure.add_trace(_front(panel))
    figure.add_traces(_named(panel, look, ((left, right), (low, high))))
    figure.add_traces(_published(panel))
    figure.update_layout(**layout(panel, (left, right), (low, high)))
    return figure


def _trajectory(panel: Panel, trajectory: Trajectory, look: Look) -> go.Scatter:
    colour, slot = look.colour(trajectory.family), look.colours[trajectory.family]
    points = trajectory.points
    # The line comes from the fine-tuned model, which has a mark of its own: an unseen first point.
    lead = [] if panel.start is None or points[0].epoch == 0 else [panel.start]
    xy = lead + [p for s in points if (p := position(s)) is not None]
    on_front = any(s in panel.front for s in points)
    alpha = 0.8 if on_front else 0.3
    bars = any(len(s.rows) > 1 for s in points)
    return go.Scatter(
        x=[x for x, _ in xy],
        y=[y for _, y in xy],
        mode="lines+markers",
        name=trajectory.method,
        line={
            "color": faded(colour, alpha),
            "width": 1.6,
            "dash": look.dashes[trajectory.learning_rate],
        },
        marker={"color": colour, **_marks(panel, trajectory, look, len(lead))},
        error_x=_bars(points, "model_utility", len(lead), colour) if bars else None,
        error_y=_bars(points, "log10_forget_quality", len(lead), colour) if bars else None,
        hoverinfo="text",
        hovertext=[""] * len(lead) + [_hover(s, panel) for s in points],
        customdata=[[0, ""]] * len(lead) + [[s.epoch, s.rows[0].run_id] for s in points],
        meta=meta(
            "trajectory", trajectory.family, trajectory.learning_rate, slot=slot, alpha=alpha
        ),
        showlegend=False,
    )


def _marks(panel: Panel, trajectory: Trajectory, look: Look, lead: int) -> dict[str, list[Any]]:
    """Opacity, size and symbol by point: dominated ones pale, the last one a diamond."""
    symbol = look.symbols[trajectory.method]
    opacity, size, symbols = [0.0] * lead, [1.0] * lead, [symbol] * lead
    for setting in trajectory.points:
        last = setting is trajectory.points[-1]
        opacity.append(1.0 if setting in panel.front else 0.4)
        size.append(10.0 if last else 6.5)
        symbols.append("diamond" if last else symbol)
    return {"opacity": opacity, "size": size, "symbol": symbols}


def _bars(points: Sequence[Setting], metric: str, lead: int, colour: str) -> dict[str, Any]:
    """Smallest to largest over the seeds."""
    up, down = [0.0] * lead, [0.0] * lead
    for setting in points:
        mean, spread = setting.metrics[metric], setting.spread(metric)
        up.append(spread[1] - mean if spread and mean is not None else 0.0)
        down.append(mean - spread[0] if spread and mean is not None else 0.0)
    return {
        "type": "data",
        "symmetric": False,
        "array": up,
        "arrayminus": down,
        "width": 0,
        "thickness": 1,
        "color": faded(colour, 0.45),
    }


def _hover(setting: Setting, panel: Panel) -> str:
    utility, quality = position(setting) or (0.0, 0.0)
    statistic = _text(setting.metrics["ks_statistic"])
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate_text(setting.learning_rate)}"
        f"  epoch {setting.epoch}",
        f"Model Utility {utility:.3f}",
        f"log₁₀ Forget Quality {signed(quality, 2)}  (KS D {statistic})",
    ]
    if panel.start and panel.start[0] > 0:
        lines[1] += f"  ({utility / panel.start[0]:.0%} of the start)"
    if spread := setting.spread("log10_forget_quality"):
        kept = setting.spread("model_utility") or (utility, utility)
        lines.append(
            f"{len(setting.rows)} seeds: {kept[0]:.3f} to {kept[1]:.3f}, "
            f"{signed(spread[0], 2)} to {signed(spread[1], 2)}"
        )
    else:
        lines.append(f"seed {setting.rows[0].seed}")
    return "<br>".join(lines)


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _front(panel: Panel) -> go.Scatter:
    xy = [p for s in panel.front if (p := position(s)) is not None]
    return go.Scatter(
        x=[x for x, _ in xy],
        y=[y for _, y in xy],
        mode="lines",
        name="Pareto front",
        # What is reachable left of and below a point of the front: a staircase, not a slope.
        line={"color": faded(MUTED, 0.55), "width": 1.5, "shape": "vh"},
        hoverinfo="skip",
        meta=meta("front"),
        showlegend=False,
    )


def _named(panel: Panel, look: Look, shown: Extent) -> list[go.Scatter]:
    """The anchors, and a ring with a name around the best point of each method."""
    anchors = {
        Label(name, xy, "", None): (row, symbol, size, title)
        for row, name, symbol, size, title in (
            (panel.fine_tuned, "start", "square", 11, "start: the fine-tuned model"),
            (panel.retain, "goal", "star", 15, "goal: the retain model"),
        )
        if row is not None and (xy := position(row)) is not None
    }
    best = [
        Label(b.method, xy, b.family, b.setting.learning_rate)
        for b in panel.best
        if b.setting is not None and (xy := position(b.setting)) is not None
    ]
    top = max(best, key=lambda label: label.at[1], default=None)
    traces: list[go.Scatter] = []
    for label, side in place([*anchors, *best], *shown):
        if label in anchors:
            row, symbol, size, title = anchors[label]
            traces.append(_anchor(row, label, side, symbol, size, title))
        else:
            traces.append(_ring(label, side, look, bold=label is top))
    return traces


def _anchor(row: Row, label: Label, side: str, symbol: str, size: int, title: str) -> go.Scatter:
    utility, quality = label.at
    return go.Scatter(
        x=[utility],
        y=[quality],
        mode="markers+text",
        name=title,
        text=[label.text],
        textposition=side,
        textfont={"color": INK, "size": 12},
        marker={"symbol": symbol, "size": size, "color": INK},
        hoverinfo="text",
        hovertext=[
            f"<b>{title}</b><br>Model Utility {utility:.3f}<br>"
            f"log₁₀ Forget Quality {signed(quality, 2)}"
        ],
        customdata=[[row.epoch, row.run_id]],
        cliponaxis=False,
        meta=meta("anchor"),
        showlegend=False,
    )


def _ring(label: Label, side: str, look: Look, *, bold: bool) -> go.Scatter:
    name = html.escape(label.text)
    colour = look.colour(label.family)
    return go.Scatter(
        x=[label.at[0]],
        y=[label.at[1]],
        mode="markers+text",
        name=f"best: {label.text}",
        text=[f"<b>{name}</b>" if bold else name],
        textposition=side,
        textfont={"color": colour, "size": 12},
        marker={"symbol": "circle-open", "size": 16, "color": colour, "line": {"width": 1.5}},
        hoverinfo="skip",
        cliponaxis=False,
        meta=meta("best", label.family, label.rate, slot=look.colours[label.family]),
        showlegend=False,
    )


def _published(panel: Panel) -> list[go.Scatter]:
    return [
        go.Scatter(
            x=[x for x, _ in series.points],
            y=[y for _, y in series.points],
            mode="lines+markers",
            name=f"published: {series.name}",
            line={"color": faded(MUTED, 0.5), "width": 1, "dash": "dot"},
            marker={"symbol": f"{SYMBOLS[i % len(SYMBOLS)]}-open", "size": 7, "color": MUTED},
            hoverinfo="text",
            hovertext=[
                f"<b>published</b>: {html.escape(series.name)}, point {k}<br>"
                f"Model Utility {x:.3f}<br>log₁₀ Forget Quality {y:.2f}"
                for k, (x, y) in enumerate(series.points, start=1)
            ],
            visible=False,
            meta=meta("published"),
            showlegend=False,
        )
        for i, series in enumerate(panel.published)
    ]
