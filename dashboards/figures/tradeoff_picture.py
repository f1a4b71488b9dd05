"""The trade-off panels as files: a picture (SVG) that needs no browser to draw, and a page.

The picture is for places that show images and run no scripts, such as a tracker's list of files.
Drawing it with Plotly would need a browser for each sweep. It is drawn from the same figures as
the page, and reads only what `tradeoff_plot.draw` writes into them.
"""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import panel_label

from ..page_data import embedded, plotly, render
from .marks import Figure
from .palette import GRID, INK, MUTED, Style
from .tradeoff_data import TradeOffPanel, drawn_panels
from .tradeoff_plot import draw

_WIDTH, _HEIGHT = 760, 460
"""Pixels of a panel with its title and its axes."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 40, 52
"""Pixels around the frame of a panel."""
_LEGEND_COLUMN, _LEGEND_LINE = 240, 22
_TICKS = 6
"""About as many ticks on an axis."""
_FONT = "font-family='Helvetica, Arial, sans-serif' font-size='12'"
_DASHES = {
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "12 5",
    "longdashdot": "12 4 2 4",
}
"""Plotly's dashes as those of SVG."""
_CORNERS = {
    "triangle-up": ((0, -1.1), (1, 0.8), (-1, 0.8)),
    "triangle-down": ((0, 1.1), (1, -0.8), (-1, -0.8)),
    "diamond": ((0, -1.25), (1, 0), (0, 1.25), (-1, 0)),
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "hourglass": ((-1, -1), (1, -1), (-1, 1), (1, 1)),
    "bowtie": ((-1, -1), (1, 1), (1, -1), (-1, 1)),
    "cross": (
        *((-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4)),
        *((0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4), (-1, -0.4), (-0.4, -0.4)),
    ),
    "x": (
        *((-1, -0.55), (-0.55, -1), (0, -0.45), (0.55, -1), (1, -0.55), (0.45, 0)),
        *((1, 0.55), (0.55, 1), (0, 0.45), (-0.55, 1), (-1, 0.55), (-0.45, 0)),
    ),
}
"""Corners of Plotly's symbols, in half their size. Others are computed, or drawn as a circle."""
_STARS = {"star": (5, 0.45), "hexagram": (6, 0.58), "pentagon": (5, None)}
"""Points of a star, and the radius of its inner corners; None for a polygon."""


def picture(results: Results) -> str:
    """Draw the trade-off of all models and splits, below each other, as SVG."""
    panels = drawn_panels(results.panels)
    style = Style.of(results.rows, results.records)
    families = sorted({row.family for row in results.rows if row.kind == "run"})
    columns = max(1, (_WIDTH - _LEFT) // _LEGEND_COLUMN)
    legend_height = math.ceil(len(families) / columns) * _LEGEND_LINE + 12
    height = legend_height + _HEIGHT * len(panels)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' "
        f"viewBox='0 0 {_WIDTH} {height}' role='img' {_FONT}>",
        f"<title>{escape(results.name)}: utility against forgetting</title>",
        f"<rect width='{_WIDTH}' height='{height}' fill='#ffffff'/>",
    ]
    for place, family in enumerate(families):
        x = _LEFT + (place % columns) * _LEGEND_COLUMN
        y = 18 + (place // columns) * _LEGEND_LINE
        parts.append(mark(style.shape(family), x, y - 4, 9, style.colour(family)))
        parts.append(_text(family, x + 12, y))
    for number, panel in enumerate(panels):
        top = legend_height + number * _HEIGHT
        parts.append(
            f"<g transform='translate(0 {top})'>{''.join(_panel(panel, style, number))}</g>"
        )
    return "\n".join([*parts, "</svg>\n"])


def page(results: Results) -> str:
    """Make a page with the trade-off panels only, which needs no network."""
    style = Style.of(results.rows, results.records)
    figures = [draw(panel, style, _HEIGHT) for panel in drawn_panels(results.panels)]
    for figure in figures:
        title = {"text": escape(figure["layout"]["meta"]["title"]), "font": {"size": 14}}
        margin = figure["layout"]["margin"] | {"t": 44}
        figure["layout"] |= {"title": title, "margin": margin}
        for trace in figure["data"]:
            trace["showlegend"] = trace["meta"]["role"] == "best"
    return render(
        "templates/tradeoff.html.j2",
        name=results.name,
        figures=figures,
        data=embedded(figures),
        plotly=plotly(),
    )


def _panel(panel: TradeOffPanel, style: Style, number: int) -> Iterator[str]:
    """Yield the elements of one panel. Its number tells its ids from those of other panels."""
    figure = draw(panel, style, _HEIGHT)
    layout = figure["layout"]
    scale = _Scale(layout["xaxis"]["range"], layout["yaxis"]["range"])
    yield _text(panel_label(panel.model, panel.forget_fraction), _LEFT, 24, size=14, weight="bold")
    yield from _axes(scale, layout)
    frame = f"x='{_LEFT}' y='{_TOP}' width='{scale.width}' height='{scale.height}'"
    clip = f"frame-{number}"
    yield f"<clipPath id='{clip}'><rect {frame}/></clipPath><g clip-path='url(#{clip})'>"
    for shape in layout["shapes"]:
        yield _shape(scale, shape)
    for trace in figure["data"]:
        yield from _lines(scale, trace)
    yield "</g>"
    for trace in figure["data"]:
        yield from _marks(scale, trace)
    for note in layout["annotations"]:
        yield _note(scale, note)


class _Scale:
    """Positions of numbers on a panel, in pixels."""

    width = _WIDTH - _LEFT - _RIGHT
    height = _HEIGHT - _TOP - _BOTTOM

    def __init__(self, x_range: Sequence[float], y_range: Sequence[float]) -> None:
        self.x_range = x_range
        self.y_range = y_range

    def x(self, value: float) -> float:
        """Position from the left."""
        low, high = self.x_range
        return round(_LEFT + self.width * (value - low) / (high - low), 1)

    def y(self, value: float) -> float:
        """Position from the top."""
        low, high = self.y_range
        return round(_TOP + self.height * (high - value) / (high - low), 1)

    def is_inside(self, x: float, y: float) -> bool:
        """Whether a point is in the frame."""
        (left, right), (low, high) = self.x_range, self.y_range
        return left <= x <= right and low <= y <= high


def _axes(scale: _Scale, layout: Figure) -> Iterator[str]:
    """Yield grid, ticks and titles."""
    bottom, right = _TOP + scale.height, _LEFT + scale.width
    for value in _ticks(*scale.x_range):
        x = scale.x(value)
        yield f"<path d='M{x} {_TOP}V{bottom}' stroke='{GRID}'/>"
        yield _text(f"{value:g}", x, bottom + 16, anchor="middle", colour=MUTED)
    for value in _ticks(*scale.y_range):
        y = scale.y(value)
        yield f"<path d='M{_LEFT} {y}H{right}' stroke='{GRID}'/>"
        yield _text(f"{value:g}".replace("-", "−"), _LEFT - 6, y + 4, anchor="end", colour=MUTED)
    titles = [_plain(layout[axis]["title"]["text"]) for axis in ("xaxis", "yaxis")]
    yield _text(titles[0], _LEFT + scale.width / 2, bottom + 38, anchor="middle")
    middle = _TOP + scale.height / 2
    yield f"<g transform='translate(16 {middle}) rotate(-90)'>"
    yield _text(titles[1], 0, 0, anchor="middle") + "</g>"


def _ticks(low: float, high: float) -> list[float]:
    """Choose round numbers between two ends: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _shape(scale: _Scale, shape: Figure) -> str:
    """Draw a level, which crosses the panel, or a filled area."""
    if shape["type"] == "rect":
        left, right = scale.x(shape["x0"]), scale.x(shape["x1"])
        return (
            f"<rect x='{left}' y='{_TOP}' width='{max(0.0, right - left)}' "
            f"height='{scale.height}' fill='{shape['fillcolor']}'/>"
        )
    y = scale.y(shape["y0"])
    line = shape["line"]
    return (
        f"<path d='M{_LEFT} {y}H{_LEFT + scale.width}' stroke='{line['color']}' "
        f"stroke-width='{line.get('width', 1)}'{_dash(line)}/>"
    )


def _dash(line: Figure) -> str:
    pattern = _DASHES.get(line.get("dash", "solid"))
    return "" if pattern is None else f" stroke-dasharray='{pattern}'"


def _lines(scale: _Scale, trace: Figure) -> Iterator[str]:
    """Yield a trace's line and its error bars."""
    points = [(scale.x(x), scale.y(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
    line = trace.get("line", {})
    if "lines" in trace["mode"] and len(points) > 1:
        path = f"M{points[0][0]} {points[0][1]}"
        for x, y in points[1:]:
            path += f"V{y}H{x}" if line.get("shape") == "vh" else f"L{x} {y}"
        yield (
            f"<path d='{path}' fill='none' stroke='{line['color']}' "
            f"stroke-width='{line['width']}'{_dash(line)}/>"
        )
    for key, at in (("error_x", scale.x), ("error_y", scale.y)):
        bars = trace.get(key)
        if not bars:
            continue
        values = trace["x"] if key == "error_x" else trace["y"]
        for (x, y), value, up, down in zip(
            points, values, bars["array"], bars["arrayminus"], strict=True
        ):
            low, high = at(value - (down or 0)), at(value + (up or 0))
            path = f"M{low} {y}H{high}" if key == "error_x" else f"M{x} {low}V{high}"
            yield f"<path d='{path}' stroke='{bars['color']}' stroke-width='1.2'/>"


def _marks(scale: _Scale, trace: Figure) -> Iterator[str]:
    """Yield a trace's points inside the frame, and the text beside them."""
    marker = trace.get("marker")
    if "markers" not in trace["mode"] or marker is None:
        return
    count = len(trace["x"])
    sizes, opacities = _each(marker["size"], count), _each(marker.get("opacity", 1.0), count)
    texts = _each(trace.get("text", ""), count)
    for x, y, size, opacity, text in zip(
        trace["x"], trace["y"], sizes, opacities, texts, strict=True
    ):
        if not opacity or not scale.is_inside(x, y):
            continue
        left, top = scale.x(x), scale.y(y)
        yield mark(marker["symbol"], left, top, size, marker["color"], opacity)
        if text:
            height, _, side = trace["textposition"].partition(" ")
            anchor = "end" if side == "left" else "start"
            shift = -8 if height == "top" else 18
            bold = "bold" if "<b>" in text else "normal"
            colour = trace["textfont"]["color"]
            yield _text(_plain(text), left, top + shift, anchor=anchor, colour=colour, weight=bold)


def _each(value: Any, count: int) -> list[Any]:
    """Repeat a value that holds for all points."""
    return list(value) if isinstance(value, list) else [value] * count


def mark(symbol: str, x: float, y: float, size: float, colour: str, opacity: float = 1.0) -> str:
    """Draw a symbol of Plotly."""
    paint = f"fill='{colour}'"
    if symbol.endswith("-open"):
        paint = f"fill='none' stroke='{colour}' stroke-width='1.5'"
    elif opacity < 1:
        paint += f" fill-opacity='{opacity:g}'"
    name, radius = symbol.removesuffix("-open"), size / 2
    corners = _CORNERS.get(name) or _star(name)
    if corners is None:
        return f"<circle cx='{x}' cy='{y}' r='{radius:g}' {paint}/>"
    points = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in corners)
    return f"<polygon points='{points}' {paint}/>"


def _star(name: str) -> tuple[tuple[float, float], ...] | None:
    """Compute the corners of a star or a polygon; None for any other symbol."""
    if name not in _STARS:
        return None
    count, inner = _STARS[name]
    radii = [1.1] if inner is None else [1.2, 1.2 * inner]
    turns = [2 * math.pi * k / (count * len(radii)) for k in range(count * len(radii))]
    return tuple(
        (radii[k % len(radii)] * math.sin(turn), -radii[k % len(radii)] * math.cos(turn))
        for k, turn in enumerate(turns)
    )


def _note(scale: _Scale, note: Figure) -> str:
    """Write a note of the layout."""
    x = _LEFT + scale.width * note["x"]
    is_level = note.get("yref") == "y"
    y = scale.y(note["y"]) if is_level else _TOP + scale.height * (1 - note["y"])
    anchor = "end" if note.get("xanchor") == "right" else "start"
    is_below = note.get("yanchor") == "top" or (not is_level and note["y"] > 0.5)
    shift = 13 if is_below else -4
    margin = -4 if anchor == "end" else 4
    return _text(_plain(note["text"]), x + margin, y + shift, anchor=anchor, colour=MUTED)


def _plain(text: str) -> str:
    """Remove Plotly's emphasis, and write subscripts on the line."""
    for tag in ("b", "i", "sub", "sup"):
        text = text.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    return text.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")


def _text(
    text: str,
    x: float,
    y: float,
    *,
    anchor: str = "start",
    colour: str = INK,
    size: int = 12,
    weight: str = "normal",
) -> str:
    style = f"fill='{colour}' font-size='{size}' font-weight='{weight}' text-anchor='{anchor}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
