"""What stands around a panel's points: its extent, axes, levels and regions."""

from __future__ import annotations

from typing import Any

from .palette import faded, percent
from .pareto import SIGNIFICANCE, Panel, position

INK = "#1c2024"
MUTED = "#5d6670"
_PAD = 0.06


def extent(panel: Panel) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the panel shows at first: (utility from, to), (log10 Forget Quality from, to)."""
    shown = [xy for t in panel.trajectories for s in t.points if (xy := position(s)) is not None]
    shown += [xy for r in (panel.fine_tuned, panel.retain) if r and (xy := position(r))]
    shown = [(x, max(y, panel.low)) for x, y in shown] or [(0.0, panel.low), (1.0, 0.0)]
    width = max(x for x, _ in shown) - min(x for x, _ in shown) or 0.1
    left, right = min(x for x, _ in shown) - _PAD * width, max(x for x, _ in shown) + 0.1 * width
    top = max(0.0, *(y for _, y in shown))
    bottom = min(*(y for _, y in shown), 2 * SIGNIFICANCE)
    height = top - bottom
    return (left, right), (bottom - _PAD * height, top + _PAD * height)


def layout(
    panel: Panel, x_range: tuple[float, float], y_range: tuple[float, float]
) -> dict[str, Any]:
    note = {"showarrow": False, "font": {"size": 11, "color": MUTED}}
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    shapes: list[dict[str, Any]] = [
        {
            **line,
            "y0": SIGNIFICANCE,
            "y1": SIGNIFICANCE,
            "name": "significance",
            "line": {"color": MUTED, "width": 1, "dash": "dot"},
        }
    ]
    notes: list[dict[str, Any]] = [
        {
            **note,
            "text": "p = 0.05",
            "xref": "paper",
            "x": 0,
            "y": SIGNIFICANCE,
            "xanchor": "left",
            "yanchor": "top",
            "name": "significance",
        },
        {
            **note,
            "text": "better ↗",
            "xref": "paper",
            "yref": "paper",
            "x": 1,
            "y": 1,
            "xanchor": "right",
            "yanchor": "bottom",
            "name": "better",
        },
    ]
    if panel.collapse_below is not None:
        shapes.append(
            {
                "type": "rect",
                "yref": "paper",
                "x0": min(0.0, x_range[0]) - 1,
                "layer": "below",
                "x1": panel.collapse_below,
                "y0": 0,
                "y1": 1,
                "line": {"width": 0},
                "fillcolor": faded(MUTED, 0.09),
                "name": "collapse",
            }
        )
        if panel.collapse_below > x_range[0]:
            notes.append(
                {
                    **note,
                    "text": "collapsed",
                    "xref": "paper",
                    "yref": "paper",
                    "x": 0.01,
                    "y": 0.01,
                    "xanchor": "left",
                    "yanchor": "bottom",
                    "name": "collapse",
                }
            )
    if panel.floor is not None:
        shapes.append(
            {
                **line,
                "y0": panel.floor,
                "y1": panel.floor,
                "name": "floor",
                "line": {"color": MUTED, "width": 1, "dash": "dash"},
            }
        )
    axis = {"zeroline": False, "showline": False, "ticks": "", "automargin": True}
    return {
        "xaxis": {**axis, "title": {"text": "Model Utility"}, "range": list(x_range)},
        "yaxis": {**axis, "title": {"text": "log₁₀ Forget Quality"}, "range": list(y_range)},
        "shapes": shapes,
        "annotations": notes,
        "margin": {"l": 52, "r": 14, "t": 22, "b": 44},
        "height": 400,
        "hovermode": "closest",
        "title": None,
        "meta": {"title": f"{panel.model}, forget {percent(panel.forget_fraction)}"},
    }
