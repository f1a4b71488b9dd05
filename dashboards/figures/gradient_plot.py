"""The page of gradient profiles: gradients with respect to a token's logits."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from unlearnbench.report.gradient_profile import GradientProfiles, Point

from .notebook import TEMPLATE
from .palette import DASHES, INK, PALETTE, slots

PANELS: tuple[tuple[str, str], ...] = (
    ("norm", "‖∂L/∂z‖"),
    ("true", "∂L/∂z<sub>y</sub>: above 0 the true token is pushed down"),
    ("other", "largest other component of ∂L/∂z"),
)
"""Quantity of each panel, as a field of `Point`, and the panel's title."""
TICKS = {
    1e-6: "10⁻⁶",
    1e-4: "10⁻⁴",
    0.01: ".01",
    0.1: ".1",
    0.5: ".5",
    0.9: ".9",
    0.99: ".99",
    1 - 1e-4: "1−10⁻⁴",
    1 - 1e-6: "1−10⁻⁶",
}
"""Texts on the axis of probabilities. The axis is linear in log-odds."""
_SMALLEST = 1e-8
"""Smallest norm that is drawn on the logarithmic axis."""


def build(profiles: GradientProfiles) -> str:
    """Build one HTML file with Plotly embedded, which opens without a network."""
    start = "the policy's own" if profiles.reference is None else f"{profiles.reference:g}"
    notes = [
        f"p of the start model: {start}. One forget token in a fixed random context.",
        "Each method is divided by its largest norm; the text at a point has the number itself.",
    ]
    notes += [f"{name}: {reason}." for name, reason in profiles.without.items()]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    body: str = figure(profiles).to_html(full_html=False, include_plotlyjs=True)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Gradient profiles</title>'
        f'<body style="font-family: system-ui, sans-serif; color: {INK}; margin: 1.5rem">'
        f"<h1>Gradient profiles</h1>{body}<ul>{items}</ul></body></html>\n"
    )


def figure(profiles: GradientProfiles) -> go.Figure:
    """Draw a panel for each quantity against p, with a line for each method.

    Lines are divided by the largest norm of their method, so that shapes can be compared. Later
    lines are thinner, so that both of two equal lines are visible.
    """
    drawn = make_subplots(rows=1, cols=len(PANELS), subplot_titles=[title for _, title in PANELS])
    for name, number in slots(profiles.curves).items():
        points = profiles.curves[name]
        line = _line_style(number, len(profiles.curves))
        for column, (quantity, _) in enumerate(PANELS, start=1):
            curve = _curve(name, points, quantity, line)
            # Each method has a single entry in the legend.
            curve.showlegend = column == 1
            drawn.add_trace(curve, row=1, col=column)
    drawn.update_xaxes(
        title_text="p(y | x)",
        tickvals=[math.log(p / (1 - p)) for p in TICKS],
        ticktext=[*TICKS.values()],
        tickangle=0,
        zeroline=False,
    )
    drawn.update_yaxes(type="log", exponentformat="power", dtick=1, row=1, col=1)
    return drawn.update_layout(template=TEMPLATE, height=600, legend_y=-0.12)


def _line_style(number: int, count: int) -> dict[str, Any]:
    """Return colour, dash and width of a method's lines, by its number among all methods."""
    return {
        "color": PALETTE[number % len(PALETTE)][0],
        "dash": DASHES[number // len(PALETTE) % len(DASHES)],
        "width": 5 - 3 * number / max(count - 1, 1),
    }


def _curve(name: str, points: Sequence[Point], quantity: str, line: dict[str, Any]) -> go.Scatter:
    """Draw one quantity of a method, divided by the method's largest norm."""
    largest_norm = max((point.norm for point in points), default=0.0) or 1.0
    values = [float(getattr(point, quantity)) for point in points]
    heights: list[float | None] = []
    for value in values:
        # The axis of norms is logarithmic and has no place for 0.
        is_too_small = quantity == "norm" and value <= _SMALLEST
        heights.append(None if is_too_small else value / largest_norm)
    probabilities = [point.probability for point in points]
    return go.Scatter(
        x=[point.log_odds for point in points],
        y=heights,
        customdata=[*zip(probabilities, values, strict=True)],
        hovertemplate="p = %{customdata[0]:.6g}: %{customdata[1]:.4g}",
        mode="lines",
        name=name,
        legendgroup=name,
        line=line,
    )
