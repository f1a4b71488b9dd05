"""Plotly figures of the trade-off panels.

Every trace has its method, rate and role in `meta`, by which the page filters and recolours it.
Colours are those of the light page; the page replaces them in dark mode.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.results.table import TableRow

from ..formatting import rate_text, signed
from .label_placement import COVERED, MEDIUM, Label, Size, place
from .palette import DASHES, PALETTE, SYMBOLS, by_rank, faded, shapes, slots
from .tradeoff_axes import INK, MUTED, Extent, extent, layout
from .tradeoff_data import Panel, Trajectory, position
from .tradeoff_points import bars, hover, marks


@dataclass(frozen=True)
class Style:
    """Colour and shape by method, dash by learning rate: the same in all figures of a page."""

    colours: Mapping[str, int]
    dashes: Mapping[float | None, str]
    symbols: Mapping[str, str]

    @classmethod
    def of(cls, rows: Sequence[TableRow]) -> Style:
        """Assign the styles of all methods and rates of a table."""
        runs = [r for r in rows if r.kind == "run"]
        colours = slots(r.family for r in runs)
        dashes = by_rank([r.learning_rate for r in runs], DASHES)
        return cls(colours, dashes, shapes(colours))

    def colour(self, family: str) -> str:
        """Look up the method's colour on a light page."""
        light, _ = PALETTE[self.colours[family]]
        return light


def meta(role: str, family: str = "", rate: float | None = None, **more: Any) -> dict[str, Any]:
    """Make the metadata of a trace that the page needs."""
    return {"role": role, "family": family, "rate": rate_text(rate), **more}


def draw(panel: Panel, style: Style, size: Size = MEDIUM, *, covered: float = COVERED) -> go.Figure:
    """Draw one panel; `size`, of its plot area in pixels, decides which names have room.

    covered  see `place`
    """
    shown = extent(panel)
    figure = go.Figure(layout={"template": go.layout.Template()})
    figure.add_traces([_trajectory(panel, t, style) for t in panel.trajectories])
    if len(panel.front) > 1:
        figure.add_trace(_front(panel))
    figure.add_traces(_named(panel, style, shown, size, covered))
    figure.add_traces(_published(panel))
    figure.update_traces(showlegend=False)
    figure.update_layout(**layout(panel, *shown, size))
    return figure


def _trajectory(panel: Panel, trajectory: Trajectory, style: Style) -> go.Scatter:
    colour = style.colour(trajectory.family)
    points = trajectory.points
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    # The line starts at the fine-tuned model, which has its own mark: an invisible first point.
    lead = [] if panel.start is None or points[0].epoch == 0 else [panel.start]
    xy = lead + _positions(points)
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
            "dash": style.dashes[trajectory.learning_rate],
        },
        marker={
            "color": colour,
            **marks(panel, trajectory, style.symbols[trajectory.family], len(lead)),
        },
        error_x=bars(points, kept.column, len(lead), colour, width=0, thickness=1.2),
        error_y=bars(points, forgotten.column, len(lead), colour, width=0, thickness=1.2),
        hoverinfo="text",
        hovertext=[""] * len(lead) + [hover(s, panel) for s in points],
        customdata=[[0, ""]] * len(lead) + [[s.epoch, s.rows[0].run_id] for s in points],
        meta=meta(
            "trajectory",
            trajectory.family,
            trajectory.learning_rate,
            slot=style.colours[trajectory.family],
            alpha=alpha,
            # With many settings, only the leading ones are drawn as lines.
            leading=on_front or chosen,
            method=trajectory.method,
        ),
    )


def _positions(settings: Sequence[Setting]) -> list[tuple[float, float]]:
    return [xy for one in settings if (xy := position(one)) is not None]


def _front(panel: Panel) -> go.Scatter:
    xy = _positions(panel.front)
    return go.Scatter(
        x=[x for x, _ in xy],
        y=[y for _, y in xy],
        mode="lines",
        name="Pareto front",
        # A staircase: points of the front are not interpolated.
        line={"color": faded(MUTED, 0.55), "width": 1.5, "shape": "vh"},
        hoverinfo="skip",
        meta=meta("front"),
    )


def _named(
    panel: Panel, style: Style, shown: Extent, size: Size, covered: float
) -> list[go.Scatter]:
    """Draw start and retain model, and a ring with a name around each method's best point."""
    references = {
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
    oriented = panel.headline.forgotten.oriented
    top = max(best, key=lambda label: oriented(label.at[1]), default=None)
    traces: list[go.Scatter] = []
    for label, side in place([*references, *best], *shown, size, covered):
        if label in references:
            row, symbol, points, title = references[label]
            side = side or "middle right"
            high = label.at[1] > sum(shown[1]) / 2
            traces.append(_reference(panel, row, label, side, symbol, points, title, high=high))
        else:
            setting = chosen[label.family]
            traces.append(_ring(label, side, style, setting, bold=label is top))
    return traces


def _reference(
    panel: Panel,
    row: TableRow,
    label: Label,
    side: str,
    symbol: str,
    size: int,
    title: str,
    *,
    high: bool,
) -> go.Scatter:
    """Draw start or retain model; `high` in the frame, its name stands below on a phone."""
    utility, quality = label.at
    return go.Scatter(
        x=[utility],
        y=[quality],
        mode="markers+text",
        name=title,
        # A star is wider than Plotly's distance of a text from its marker.
        text=[f"\u00a0{label.text}\u00a0" if "middle" in side else label.text],
        textposition=side,
        textfont={"color": INK, "size": 12},
        marker={"symbol": symbol, "size": size, "color": INK},
        hoverinfo="text",
        hovertext=[f"<b>{title}</b><br>{_numbers(panel, utility, quality)}"],
        customdata=[[row.epoch, row.run_id]],
        cliponaxis=False,
        meta=meta("reference", high=high),
    )


def _ring(
    label: Label, side: str | None, style: Style, setting: Setting, *, bold: bool
) -> go.Scatter:
    """Draw a ring around a best setting; without its name if that would cover other names."""
    name = html.escape(label.text)
    colour = style.colour(label.family)
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
            slot=style.colours[label.family],
            method=setting.method,
        ),
    )


def _numbers(panel: Panel, utility: float, quality: float) -> str:
    """Write the two numbers of a point, for its hover text."""
    both = ((panel.headline.kept, utility), (panel.headline.forgotten, quality))
    return "<br>".join(f"{html.escape(m.label)} {signed(v, m.digits)}" for m, v in both)


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
                f"{_numbers(panel, x, y)}"
                for k, (x, y) in enumerate(series.points, start=1)
            ],
            visible=False,
            meta=meta("published"),
        )
        for i, series in enumerate(panel.published)
    ]
