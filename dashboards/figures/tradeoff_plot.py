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
from .palette import DASHES, SYMBOLS, by_rank, colours, faded, shape, slots
from .tradeoff_axes import INK, MUTED, Extent, extent, layout
from .tradeoff_data import Panel, Trajectory, position
from .tradeoff_points import bars, hover, marks


@dataclass(frozen=True)
class Style:
    """Colour and shape by method, dash by learning rate: the same in all figures of a sweep."""

    slots: Mapping[str, int]
    """Number of each method, which decides its colour and shape."""
    dashes: Mapping[float | None, str]

    @classmethod
    def of(cls, rows: Sequence[TableRow]) -> Style:
        """Assign the styles of all methods and learning rates of a sweep."""
        runs = [r for r in rows if r.kind == "run"]
        dashes = by_rank([r.learning_rate for r in runs], DASHES)
        return cls(slots(r.family for r in runs), dashes)

    def colour(self, family: str) -> str:
        """Look up the method's colour on a light page."""
        light, _ = colours(self.slots[family])
        return light

    def shape(self, family: str) -> str:
        """Look up the shape of the method's points."""
        return shape(self.slots[family])


def meta(role: str, family: str = "", rate: float | None = None, **more: Any) -> dict[str, Any]:
    """Make the metadata of a trace that the page needs."""
    return {"role": role, "family": family, "rate": rate_text(rate), **more}


def draw(panel: Panel, style: Style, height: int = 400) -> go.Figure:
    """Draw one panel, for a page, a notebook or a paper; the methods' names are a legend's."""
    shown = extent(panel)
    figure = go.Figure(layout={"template": go.layout.Template()})
    figure.add_traces([_trajectory(panel, t, style) for t in panel.trajectories])
    if len(panel.front) > 1:
        figure.add_trace(_front(panel))
    figure.add_traces(_best(panel, style, shown))
    figure.add_traces(_references(panel, shown))
    figure.add_traces(_published(panel))
    figure.update_traces(showlegend=False)
    figure.update_layout(**layout(panel, *shown, height))
    return figure


def _trajectory(panel: Panel, trajectory: Trajectory, style: Style) -> go.Scatter:
    family, rate, points = trajectory.family, trajectory.learning_rate, trajectory.points
    colour = style.colour(family)
    kept, forgotten = panel.headline.kept, panel.headline.forgotten
    # The line starts at the fine-tuned model, which has its own mark: an invisible first point.
    lead = [] if panel.start is None or points[0].epoch == 0 else [panel.start]
    xy = lead + _positions(points)
    on_front = any(s in panel.front for s in points)
    leading = on_front or any(b.setting in points for b in panel.best)
    alpha = 0.8 if on_front else 0.3
    # A collapsed model's interval says nothing, and its bars would cover the working ones.
    sure = [s if leading and not panel.has_collapsed(s) else None for s in points]
    style_of: dict[str, Any] = {"slot": style.slots[family], "alpha": alpha, "leading": leading}
    return go.Scatter(
        x=[x for x, _ in xy],
        y=[y for _, y in xy],
        # Others than the leading settings are dots; the page can join them.
        mode="lines+markers" if leading else "markers",
        name=trajectory.method,
        line={"color": faded(colour, alpha), "width": 1.6, "dash": style.dashes[rate]},
        marker=marks(panel, trajectory, style.shape(family), len(lead)) | {"color": colour},
        error_x=bars(sure, kept.column, len(lead), colour, width=0, thickness=1.2),
        error_y=bars(sure, forgotten.column, len(lead), colour, width=0, thickness=1.2),
        hoverinfo="text",
        hovertext=[""] * len(lead) + [hover(s, panel) for s in points],
        customdata=[[0, ""]] * len(lead) + [[s.epoch, s.rows[0].run_id] for s in points],
        meta=meta("trajectory", family, rate, **style_of, method=trajectory.method),
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


def _references(panel: Panel, shown: Extent) -> list[go.Scatter]:
    """Draw start and retain model, with their names beside them."""
    found: list[go.Scatter] = []
    for row, name, symbol, points, title in (
        (panel.fine_tuned, "start", "square", 11, "start model, before unlearning"),
        (panel.retain, "retain", "star", 15, "retain model, trained without the forget rows"),
    ):
        if row is None or (xy := position(row)) is None:
            continue
        side = _side("top" if symbol == "star" else "bottom", xy[0], shown)
        found.append(
            _mark(
                *(name, title, INK, xy, side),
                {"symbol": symbol, "size": points},
                customdata=[[row.epoch, row.run_id]],
                hoverinfo="text",
                hovertext=[f"<b>{title}</b><br>{_numbers(panel, *xy)}"],
                meta=meta("reference"),
            )
        )
    return found


def _best(panel: Panel, style: Style, shown: Extent) -> list[go.Scatter]:
    """Draw a ring around each method's best setting; the one that forgets most has its name."""
    placed = [
        (one.family, one.setting, xy)
        for one in panel.best
        if one.setting is not None and (xy := position(one.setting)) is not None
    ]
    oriented = panel.headline.forgotten.oriented
    top = max(placed, key=lambda one: oriented(one[2][1]), default=None)
    return [
        _mark(
            f"<b>{html.escape(family)}</b>" if (family, setting, xy) == top else "",
            *(f"best: {setting.method}", style.colour(family), xy, _side("bottom", xy[0], shown)),
            {"symbol": "circle-open", "size": 17, "line": {"width": 1.5}},
            customdata=[[setting.epoch, setting.rows[0].run_id]],
            hoverinfo="skip",
            meta=meta(
                *("best", family, setting.learning_rate),
                slot=style.slots[family],
                method=setting.method,
            ),
        )
        for family, setting, xy in placed
    ]


def _side(height: str, x: float, shown: Extent) -> str:
    """Choose the side of a name that is inside the frame."""
    (left, right), _ = shown
    return f"{height} {'left' if x > left + 0.6 * (right - left) else 'right'}"


def _mark(
    text: str,
    name: str,
    colour: str,
    xy: tuple[float, float],
    side: str,
    marker: dict[str, Any],
    **more: Any,
) -> go.Scatter:
    """Draw one point, with its text at a side of it."""
    return go.Scatter(
        x=[xy[0]],
        y=[xy[1]],
        mode="markers+text" if text else "markers",
        name=name,
        # A star is wider than Plotly's distance of a text from its marker.
        text=[f"\u00a0{text}\u00a0"],
        textposition=side,
        textfont={"color": colour, "size": 12},
        marker={"color": colour, **marker},
        cliponaxis=False,
        **more,
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
