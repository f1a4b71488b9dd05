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

from .frame import INK, MUTED, extent, layout
from .labels import Label, place
from .palette import DASHES, PALETTE, SYMBOLS, by_rank, faded, rate_text, slots
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
    figure.add_traces(_anchors(panel))
    figure.add_traces(_labels(panel, look, ((left, right), (low, high))))
    figure.add_traces(_published(panel))
    figure.update_layout(**layout(panel, (left, right), (low, high)))
    return figure


def _trajectory(panel: Panel, trajectory: Trajectory, look: Look) -> go.Scatter:
    colour = look.colour(trajectory.family)
    front = {id(s) for s in panel.front}
    best = {id(b.setting) for b in panel.best}
    points = trajectory.points
    start = [] if panel.start is None or points[0].epoch == 0 else [panel.start]
    xy = start + [p for s in points if (p := position(s)) is not None]
    weight = [1.0 if id(s) in front else 0.75 if id(s) in best else 0.4 for s in points]
    last = len(points) - 1
    symbol = look.symbols[trajectory.method]
    alpha = 0.8 if max(weight) >= 1.0 else 0.3
    spreads = [s.spread("log10_forget_quality") for s in points]
    lead = len(start)
    bars = any(spreads)
    return go.Scatter(
        x=[x for x, _ in xy],
        y=[y for _, y in xy],
        mode="lines+markers",
        name=trajectory.method,
        line={
            "color": faded(colour, alpha),
            "width": 1.6,
            "dash": look.dashes[points[0].learning_rate],
        },
        marker={
            "color": colour,
            "opacity": [0.0] * lead + weight,
            "size": [1] * lead
            + [12 if id(s) in best else 11 if i == last else 6.5 for i, s in enumerate(points)],
            "symbol": [symbol] * lead
            + ["diamond" if i == last else symbol for i in range(len(points))],
            "line": {
                "width": [0.0] * lead + [2.0 if id(s) in best else 0.0 for s in points],
                "color": INK,
            },
        },
        error_y=_bars(points, "log10_forget_quality", lead, colour) if bars else None,
        error_x=_bars(points, "model_utility", lead, colour) if bars else None,
        hoverinfo="text",
        hovertext=[""] * lead + [_hover(s, panel) for s in points],
        customdata=[[0, ""]] * lead + [[s.epoch, s.rows[0].run_id] for s in points],
        meta=meta(
            "trajectory",
            trajectory.family,
            trajectory.learning_rate,
            slot=look.colours[trajectory.family],
            alpha=alpha,
        ),
        showlegend=False,
    )


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
    lines = [
        f"<b>{html.escape(setting.method)}</b>  lr {rate_text(setting.learning_rate)}"
        f"  epoch {setting.epoch}",
        f"Model Utility {utility:.3f}",
        f"log₁₀ Forget Quality {quality:.2f}  (D = {_text(setting.metrics['ks_statistic'])})",
    ]
    if panel.start and panel.start[0] > 0:
        lines[1] += f"  ({utility / panel.start[0]:.0%} of the start)"
    if spread := setting.spread("log10_forget_quality"):
        kept = setting.spread("model_utility") or (utility, utility)
        lines.append(
            f"{len(setting.rows)} seeds: {kept[0]:.3f} to {kept[1]:.3f}, "
            f"{spread[0]:.2f} to {spread[1]:.2f}"
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


def _anchors(panel: Panel) -> list[go.Scatter]:
    looks = (
        (panel.fine_tuned, "square", "start: fine-tuned model", "bottom left"),
        (panel.retain, "star", "goal: retain model", "bottom left"),
    )
    traces: list[go.Scatter] = []
    for row, symbol, text, _ in looks:
        if row is None or (xy := position(row)) is None:
            continue
        hover = f"<b>{text}</b><br>Model Utility {xy[0]:.3f}<br>log₁₀ Forget Quality {xy[1]:.2f}"
        traces.append(
            go.Scatter(
                x=[xy[0]],
                y=[xy[1]],
                mode="markers",
                name=text,
                marker={"symbol": symbol, "size": 15 if symbol == "star" else 11, "color": INK},
                hoverinfo="text",
                hovertext=[hover],
                customdata=[[row.epoch, row.run_id]],
                cliponaxis=False,
                meta=meta("anchor"),
                showlegend=False,
            )
        )
    return traces


def _labels(
    panel: Panel, look: Look, shown: tuple[tuple[float, float], tuple[float, float]]
) -> list[go.Scatter]:
    wanted = [
        Label(b.method, xy, b.family, b.setting.learning_rate)
        for b in panel.best
        if b.setting is not None and (xy := position(b.setting)) is not None
    ]
    anchors = [
        Label(text, xy, "", None)
        for row, text in ((panel.fine_tuned, "start"), (panel.retain, "goal"))
        if row is not None and (xy := position(row)) is not None
    ]
    return [
        go.Scatter(
            x=[label.at[0]],
            y=[label.at[1]],
            mode="text",
            text=[html.escape(label.text)],
            textposition=where,
            textfont={"color": look.colour(label.family) if label.family else INK, "size": 12},
            hoverinfo="skip",
            cliponaxis=False,
            meta=meta(
                "label" if label.family else "anchor-label",
                label.family,
                label.rate,
                **({"slot": look.colours[label.family]} if label.family else {}),
            ),
            showlegend=False,
        )
        for label, where in place([*anchors, *wanted], *shown)
    ]


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
