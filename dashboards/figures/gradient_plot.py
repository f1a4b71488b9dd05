"""Pages of gradient profiles: gradients with respect to logits, and cosines between methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.testing.gradient_profile import Cosines, GradientProfiles, Point

from ..formatting import signed
from .palette import DASHES, PALETTE, colours, slots
from .tradeoff_axes import INK, MUTED

PANELS: tuple[tuple[str, str], ...] = (
    ("norm", "‖∂L/∂z‖"),
    ("true", "∂L/∂z<sub>y</sub>: above 0 the true token is pushed down"),
    ("other", "largest other component of ∂L/∂z"),
)
TICKS = (1e-6, 1e-4, 0.01, 0.1, 0.5, 0.9, 0.99, 1 - 1e-4, 1 - 1e-6)
_LABELS = ("10⁻⁶", "10⁻⁴", ".01", ".1", ".5", ".9", ".99", "1−10⁻⁴", "1−10⁻⁶")
_SMALLEST = 1e-8
"""Smallest norm drawn on the logarithmic axis."""


def build(profiles: GradientProfiles) -> str:
    """Build the page of the curves."""
    start = "the policy's own" if profiles.reference is None else f"{profiles.reference:g}"
    notes = [f"{name}: {reason}." for name, reason in profiles.without.items()]
    about = f"p of the start model: {start}. One forget token in a fixed random context."
    return _page(figure(profiles), "Gradient profiles", [about, *notes])


def build_cosine(cosines: Cosines) -> str:
    """Build the page of the matrix."""
    notes = [f"{name}: {reason}." for name, reason in cosines.without.items()]
    about = "Gradients of all trained weights on one batch, at the start model, a tiny Llama."
    return _page(matrix(cosines), "Cosine of the methods' gradients", [about, *notes])


def figure(profiles: GradientProfiles) -> go.Figure:
    """Draw a panel for each quantity against p, with a line for each method.

    Lines are divided by the largest norm of their method, so that shapes can be compared; a button
    shows them undivided. Later lines are thinner: where two coincide, both are visible.
    """
    drawn = make_subplots(rows=1, cols=3, subplot_titles=[title for _, title in PANELS])
    numbers = slots(profiles.curves)
    scales = {name: _largest(points) for name, points in profiles.curves.items()}
    plain: list[list[float | None]] = []
    scaled: list[list[float | None]] = []
    names = sorted(profiles.curves)
    for i, name in enumerate(names):
        points = profiles.curves[name]
        dash = DASHES[numbers[name] // len(PALETTE) % len(DASHES)]
        style = {"color": colours(numbers[name])[0], "dash": dash}
        for column, (quantity, _) in enumerate(PANELS, start=1):
            values = [float(getattr(point, quantity)) for point in points]
            plain.append(_drawable(values, quantity))
            scaled.append(_drawable([v / scales[name] for v in values], quantity))
            drawn.add_trace(
                go.Scatter(
                    x=[point.log_odds for point in points],
                    y=scaled[-1],
                    customdata=[*zip([one.probability for one in points], values, strict=True)],
                    hovertemplate="p = %{customdata[0]:.6g}: %{customdata[1]:.4g}",
                    mode="lines",
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    line={**style, "width": 5 - 3 * i / max(len(names) - 1, 1)},
                ),
                row=1,
                col=column,
            )
    drawn.update_xaxes(
        title_text="p(y | x)",
        tickvals=[math.log(p / (1 - p)) for p in TICKS],
        ticktext=_LABELS,
        tickangle=0,
        zeroline=False,
        gridcolor="#eee",
    )
    drawn.update_yaxes(zerolinecolor=MUTED, gridcolor="#eee")
    drawn.update_yaxes(type="log", exponentformat="power", dtick=1, row=1, col=1)
    _set_layout(drawn, 600, top=110)
    drawn.update_layout(legend={"font": {"size": 11}}, updatemenus=[_scales(scaled, plain)])
    return drawn


def _scales(scaled: Sequence[object], plain: Sequence[object]) -> dict[str, object]:
    buttons = (("each by its largest norm", scaled), ("as computed", plain))
    return {
        **{"type": "buttons", "direction": "right"},
        **{"x": 0, "xanchor": "left", "y": 1.2, "yanchor": "top"},
        "buttons": [
            {"label": label, "method": "restyle", "args": [{"y": list(values)}]}
            for label, values in buttons
        ],
    }


def _largest(points: Sequence[Point]) -> float:
    return max((point.norm for point in points), default=0.0) or 1.0


def _drawable(values: Sequence[float], quantity: str) -> list[float | None]:
    if quantity != "norm":
        return list(values)
    return [value if value > _SMALLEST else None for value in values]


def matrix(cosines: Cosines) -> go.Figure:
    """Draw the cosines as a heat map with their values."""
    text = [[_cell(value) for value in line] for line in cosines.values]
    drawn = go.Figure(
        go.Heatmap(
            z=cosines.values,
            x=cosines.names,
            y=cosines.names,
            zmin=-1,
            zmax=1,
            colorscale=[(0, "#D24E00"), (0.5, "#FFFFFF"), (1, "#0072B2")],
            text=text,
            texttemplate="%{text}",
            hovertemplate="%{y} and %{x}: %{z:.4f}<extra></extra>",
            colorbar={"title": {"text": "cosine"}},
        )
    )
    drawn.update_yaxes(autorange="reversed", automargin=True)
    drawn.update_xaxes(tickangle=-45, automargin=True)
    _set_layout(drawn, 200 + 32 * len(cosines.names), top=20)
    return drawn


def _cell(value: float | None) -> str:
    return "–" if value is None else signed(round(value, 2) + 0.0, 2)  # + 0.0 turns −0.0 into 0.0


def _set_layout(drawn: go.Figure, height: int, top: int) -> None:
    drawn.update_layout(
        height=height,
        plot_bgcolor="white",
        paper_bgcolor="white",
        font={"family": "system-ui, sans-serif", "color": INK, "size": 12},
        margin={"l": 50, "r": 20, "t": top, "b": 60},
    )
    drawn.update_annotations(font={"size": 13})


def _page(drawn: go.Figure, title: str, notes: Sequence[str]) -> str:
    """Build one HTML file with Plotly embedded, which opens without a network."""
    body: str = drawn.to_html(full_html=False, include_plotlyjs=True)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="font-family: system-ui, sans-serif; color: {INK}; margin: 1.5rem">'
        f"<h1>{escape(title)}</h1>{body}<ul>{items}</ul></body></html>\n"
    )
