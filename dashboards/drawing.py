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
from .labels import LARGE, MEDIUM, Label, Size, place
from .palette import (
    DASHES,
    PALETTE,
    SYMBOLS,
    by_rank,
    faded,
    rate_text,
    shapes,
    signed,
    slots,
)
from .pareto import Panel, Trajectory, panels, position
from .points import bars, hover, marks


def pareto(rows: Sequence[Row], *, published: bool = False) -> tuple[go.Figure, ...]:
    """A figure per model and forget fraction, straight from the table."""
    look = Look.of(rows)
    drawn = panels(rows, published=published)
    return tuple(draw(panel, look, MEDIUM if len(drawn) > 1 else LARGE) for panel in drawn)


class Look:
    """A method's colour and shape, a rate's dash: the same on all of a page's figures."""

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
        colours = slots(r.family for r in runs)
        dashes = by_rank([r.learning_rate for r in runs], DASHES)
        return cls(colours, dashes, shapes(colours))

    def colour(self, family: str) -> str:
        """On a light page."""
        light, _ = PALETTE[self.colours[family]]
        return light


def meta(role: str, family: str = "", rate: float | None = None, **more: Any) -> dict[str, Any]:
    """What the page needs to know of a trace."""
    return {"role": role, "family": family, "rate": rate_text(rate), **more}


def draw(panel: Panel, look: Look, size: Size = MEDIUM) -> go.Figure:
    """One panel; `size`, of its inside in pixels, decides which names find room."""
    (left, right), (low, high) = extent(panel)
    figure = go.Figure(layout={"template": go.layout.Template()})
    figure.add_traces([_trajectory(panel, t, look) for t in panel.trajectories])
    if len(panel.front) > 1:
        figure.add_trace(_front(panel))
    figure.add_traces(_named(panel, look, ((left, right), (low, high)), size))
    figure.add_traces(_published(panel))
    figure.update_layout(**layout(panel, (left, right), (low, high), size))
    return figure


def _trajectory(panel: Panel, trajectory: Trajectory, look: Look) -> go.Scatter:
    colour, slot = look.colour(trajectory.family), look.colours[trajectory.family]
    points = trajectory.points
    # The line comes from the fine-tuned model, which has a mark of its own: an unseen first point.
    lead = [] if panel.start is None or points[0].epoch == 0 else [panel.start]
    xy = lead + [p for s in points if (p := position(s)) is not None]
    on_front = any(s in panel.front for s in points)
    chosen = any(b.setting in points for b in panel.best)
    alpha = 0.8 if on_front else 0.3
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
        marker={
            "color": colour,
            **marks(panel, trajectory, look.symbols[trajectory.family], len(lead)),
        },
        error_x=bars(points, "model_utility", len(lead), colour),
        error_y=bars(points, "log10_forget_quality", len(lead), colour),
        hoverinfo="text",
        hovertext=[""] * len(lead) + [hover(s, panel) for s in points],
        customdata=[[0, ""]] * len(lead) + [[s.epoch, s.rows[0].run_id] for s in points],
        meta=meta(
            "trajectory",
            trajectory.family,
            trajectory.learning_rate,
            slot=slot,
            alpha=alpha,
            # What stays a line where a panel of many settings shows the leading ones alone.
            leading=on_front or chosen,
            method=trajectory.method,
        ),
        showlegend=False,
    )


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


def _named(panel: Panel, look: Look, shown: Extent, size: Size) -> list[go.Scatter]:
    """The anchors, and a ring with a name around the best point of each method."""
    anchors = {
        Label(name, xy, "", None): (row, symbol, points, title)
        for row, name, symbol, points, title in (
            (panel.fine_tuned, "start", "square", 11, "start: the fine-tuned model"),
            (panel.retain, "goal", "star", 15, "goal: the retain model"),
        )
        if row is not None and (xy := position(row)) is not None
    }
    best = [
        Label(b.family, xy, b.family, b.setting.learning_rate)
        for b in panel.best
        if b.setting is not None and (xy := position(b.setting)) is not None
    ]
    chosen = {b.family: b.setting for b in panel.best if b.setting is not None}
    top = max(best, key=lambda label: label.at[1], default=None)
    traces: list[go.Scatter] = []
    for label, side in place([*anchors, *best], *shown, size):
        if label in anchors:
            row, symbol, points, title = anchors[label]
            traces.append(_anchor(row, label, side or "middle right", symbol, points, title))
        else:
            setting = chosen[label.family]
            traces.append(_ring(label, side, look, setting, bold=label is top))
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


def _ring(
    label: Label, side: str | None, look: Look, setting: Setting, *, bold: bool
) -> go.Scatter:
    """Around a best setting; without its name where that would cover other names."""
    name = html.escape(label.text)
    colour = look.colour(label.family)
    return go.Scatter(
        x=[label.at[0]],
        y=[label.at[1]],
        mode="markers+text" if side else "markers",
        name=f"best: {setting.method}",
        text=[f"<b>{name}</b>" if bold else name],
        textposition=side or "middle right",
        textfont={"color": colour, "size": 12},
        marker={"symbol": "circle-open", "size": 17, "color": colour, "line": {"width": 1.5}},
        hoverinfo="skip",
        customdata=[[setting.epoch, setting.rows[0].run_id]],
        cliponaxis=False,
        meta=meta(
            "best",
            label.family,
            label.rate,
            slot=look.colours[label.family],
            method=setting.method,
        ),
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
