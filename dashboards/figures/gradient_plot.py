"""Pages of gradient profiles: gradients with respect to logits, and cosines between methods."""

import math
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.testing.gradient_profile import Cosines, GradientProfiles

from ..formatting import signed
from .notebook import TEMPLATE
from .palette import DASHES, INK, PALETTE, slots

PANELS: tuple[tuple[str, str], ...] = (
    ("norm", "‖∂L/∂z‖"),
    ("true", "∂L/∂z<sub>y</sub>: above 0 the true token is pushed down"),
    ("other", "largest other component of ∂L/∂z"),
)
TICKS = {0.000001: "10⁻⁶", 0.0001: "10⁻⁴", 0.01: ".01", 0.1: ".1", 0.5: ".5", 0.9: ".9"} | {
    **{0.99: ".99", 1 - 1e-4: "1−10⁻⁴", 1 - 1e-6: "1−10⁻⁶"}
}
_SMALLEST = 1e-8
"""Smallest norm drawn on the logarithmic axis."""


def build(profiles: GradientProfiles) -> str:
    """Build the page of the curves."""
    start = "the policy's own" if profiles.reference is None else f"{profiles.reference:g}"
    notes = [f"{name}: {reason}." for name, reason in profiles.without.items()]
    about = f"p of the start model: {start}. One forget token in a fixed random context."
    scale = "Each method is divided by its largest norm; the text at a point has the number itself."
    return _page(figure(profiles), "Gradient profiles", [about, scale, *notes])


def build_cosine(cosines: Cosines) -> str:
    """Build the page of the matrix."""
    notes = [f"{name}: {reason}." for name, reason in cosines.without.items()]
    about = "Gradients of all trained weights on one batch, at the start model, a tiny Llama."
    return _page(matrix(cosines), "Cosine of the methods' gradients", [about, *notes])


def figure(profiles: GradientProfiles) -> go.Figure:
    """Draw a panel for each quantity against p, with a line for each method.

    Lines are divided by the largest norm of their method, so that shapes can be compared. Later
    lines are thinner: where two coincide, both are visible.
    """
    drawn = make_subplots(rows=1, cols=3, subplot_titles=[title for _, title in PANELS])
    for name, number in slots(profiles.curves).items():
        points = profiles.curves[name]
        largest = max((point.norm for point in points), default=0.0) or 1.0
        line = {
            "color": PALETTE[number % len(PALETTE)][0],
            "dash": DASHES[number // len(PALETTE) % len(DASHES)],
            "width": 5 - 3 * number / max(len(profiles.curves) - 1, 1),
        }
        for column, (quantity, _) in enumerate(PANELS, start=1):
            values = [float(getattr(point, quantity)) for point in points]
            shown = [v / largest if quantity != "norm" or v > _SMALLEST else None for v in values]
            drawn.add_trace(
                go.Scatter(
                    x=[point.log_odds for point in points],
                    y=shown,
                    customdata=[*zip([item.probability for item in points], values, strict=True)],
                    hovertemplate="p = %{customdata[0]:.6g}: %{customdata[1]:.4g}",
                    mode="lines",
                    name=name,
                    legendgroup=name,
                    showlegend=column == 1,
                    line=line,
                ),
                row=1,
                col=column,
            )
    drawn.update_xaxes(
        title_text="p(y | x)",
        tickvals=[math.log(p / (1 - p)) for p in TICKS],
        ticktext=[*TICKS.values()],
        tickangle=0,
        zeroline=False,
    )
    drawn.update_yaxes(type="log", exponentformat="power", dtick=1, row=1, col=1)
    return drawn.update_layout(template=TEMPLATE, height=600, legend_y=-0.12)


def matrix(cosines: Cosines) -> go.Figure:
    """Draw the cosines as a heat map with their values."""
    # + 0.0 turns −0.0 into 0.0
    text = [
        ["–" if v is None else signed(round(v, 2) + 0.0, 2) for v in line]
        for line in cosines.values
    ]
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
    return drawn.update_layout(template=TEMPLATE, height=200 + 32 * len(cosines.names))


def _page(drawn: go.Figure, title: str, notes: Sequence[str]) -> str:
    """Build one HTML file with Plotly embedded, which opens without a network."""
    body: str = drawn.to_html(full_html=False, include_plotlyjs=True)
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="font-family: system-ui, sans-serif; color: {INK}; margin: 1.5rem">'
        f"<h1>{escape(title)}</h1>{body}<ul>{items}</ul></body></html>\n"
    )
